"""Logs each job that comes to a phase of your choice."""

import json

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.handler import Description
from wit_world.imports import config, log
from wit_world.imports.types import Change, FieldError, Verdict_Done


class Handler(exports.Handler):
    def describe(self):
        return Description(name="{{name}}", version="0.1.0", config_schema="", needs=[], extra=[])

    def check(self, config):
        phase = json.loads(config).get("phase")
        if not isinstance(phase, str) or not phase:
            raise Err([FieldError(path="phase", message="has to be a text, such as Failed")])

    def handle(self, states):
        """Returns one verdict for each state, in the same order."""
        phase = json.loads(config.get())["phase"]
        for state in states:
            if state.change == Change.PRESENT and state.status.phase == phase:
                fields = [("job", state.object.name), ("why", state.status.reason)]
                log.write(log.Level.WARN, "a job needs you", fields)
        return [Verdict_Done() for _ in states]
