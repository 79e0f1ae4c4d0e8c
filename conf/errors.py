"""The error of a configuration that cannot run."""


class ConfigError(ValueError):
    """What the user gave cannot run: one line, `<path> must be <rule>, got <value>[; <remedy>]`."""
