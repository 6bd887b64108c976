"""Settings: both JSON files and the flags, checked once and frozen."""
