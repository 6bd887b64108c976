from ds_tft.training.environment import ProcessPlace, prepare_environment


def test_plain_python_is_one_process_on_a_free_port():
    environ = {}
    assert prepare_environment(environ) == ProcessPlace(rank=0, local_rank=0, world_size=1)
    assert environ["MASTER_PORT"] == "0"
    assert environ["MASTER_ADDR"] == "127.0.0.1"


def test_what_a_launcher_set_is_kept():
    environ = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
    }
    before = dict(environ)
    assert prepare_environment(environ) == ProcessPlace(rank=1, local_rank=1, world_size=2)
    assert before.items() <= environ.items()
