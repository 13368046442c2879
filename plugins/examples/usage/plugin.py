"""Keeps a table of the GPU-hours of each job that has ended."""

import json
from datetime import datetime

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.handler import Description
from wit_world.imports import config, documents, sql
from wit_world.imports.types import (
    Change,
    Error_RateLimited,
    Error_Timeout,
    Error_Unavailable,
    FieldError,
    RetryLater,
    Verdict_Done,
    Verdict_Reject,
    Verdict_Retry,
)

DATABASE = "main"
COLUMNS = ["uid", "namespace", "name", "phase", "pods", "gpus", "seconds", "gpu_hours", "seq"]
TABLE = """create table if not exists gpu_usage (
    uid varchar(64) not null primary key, namespace varchar(63) not null, name varchar(253) not null,
    phase varchar(32) not null, pods bigint not null, gpus bigint not null, seconds bigint not null,
    gpu_hours double precision not null, seq bigint not null)"""
# Of these errors time may be the cure.
PASSING = (Error_Unavailable, Error_Timeout, Error_RateLimited)


class Handler(exports.Handler):
    def describe(self):
        return Description(name="usage", version="0.1.0", config_schema="", needs=["sql:main"], extra=[])

    def check(self, config):
        resource = json.loads(config).get("resource")
        if not isinstance(resource, str) or not resource:
            raise Err([FieldError(path="resource", message="names no resource, such as nvidia.com/gpu")])

    def handle(self, states):
        """Returns one verdict for each state, in the same order."""
        resource = json.loads(config.get())["resource"]
        try:
            rows = [row(state, resource) for state in states if is_ended(state)]
            if rows:
                sql.execute(DATABASE, TABLE, [[]])
                # A row of a later version replaces the one of an earlier one.
                newest = sql.OnConflict_ReplaceOlder("seq")
                sql.write(DATABASE, sql.TableWrite("gpu_usage", COLUMNS, ["uid"], newest, rows))
        except Err as error:
            return [failed(error.value) for _ in states]
        return [Verdict_Done() for _ in states]


def is_ended(state):
    return state.change == Change.PRESENT and state.object.kind == "Job" and state.status.terminal


def row(state, resource):
    document = json.loads(documents.json(state.seq) or "{}")
    spec, status = document.get("spec", {}), document.get("status", {})
    pods = int(spec.get("parallelism", 1))
    gpus = pods * sum(gpus_of(container, resource) for container in containers(spec))
    seconds = duration(status)
    return [
        sql.Value_Text(state.object.uid),
        sql.Value_Text(state.object.namespace),
        sql.Value_Text(state.object.name),
        sql.Value_Text(state.status.phase),
        sql.Value_Integer(pods),
        sql.Value_Integer(gpus),
        sql.Value_Integer(seconds),
        sql.Value_Float(round(gpus * seconds / 3600, 3)),
        sql.Value_Integer(state.seq),
    ]


def containers(spec):
    return spec.get("template", {}).get("spec", {}).get("containers", [])


def gpus_of(container, resource):
    return int(container.get("resources", {}).get("limits", {}).get(resource, 0))


def duration(status):
    """From the start to the end; a job that failed has its end in a condition."""
    ends = [status.get("completionTime")]
    for condition in status.get("conditions", []):
        if condition.get("type") == "Failed":
            ends.append(condition.get("lastTransitionTime"))
    begin, end = status.get("startTime"), next((end for end in ends if end), None)
    if not begin or not end:
        return 0
    return max(0, int((moment(end) - moment(begin)).total_seconds()))


def moment(text):
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def failed(error):
    if isinstance(error, PASSING):
        return Verdict_Retry(RetryLater(after_ms=None, reason=str(error)))
    return Verdict_Reject(str(error))
