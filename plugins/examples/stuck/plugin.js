// Tells a webhook of each job that waits for longer than it should.
//
// A job that waits is noted in `kv` when its state comes, and its note goes when it waits no more. A tick looks at the notes.

import { nowMs } from "kubewitness:plugin/clock@1.2.0";
import { get as config } from "kubewitness:plugin/config@1.2.0";
import { send } from "kubewitness:plugin/http@1.2.0";
import { delete as remove, get, keys, set } from "kubewitness:plugin/kv@1.2.0";

const WAITING = new Set(["Queued", "Admitted", "Pending", "Starting"]);
const NOTES = "waiting/";
// Notes that one tick looks at.
const MOST = 1000;

const encode = (value) => new TextEncoder().encode(JSON.stringify(value));
const decode = (bytes) => JSON.parse(new TextDecoder().decode(bytes));

function note(state) {
  const key = NOTES + state.object.uid;
  const known = get(key);
  if (state.change !== "present" || !WAITING.has(state.status.phase)) {
    if (known) remove(key);
  } else if (!known) {
    const { namespace, name } = state.object;
    set(key, encode({ job: `${namespace}/${name}`, since: Number(state.observedMs), told: false }));
  }
}

function tell(key, waiting, minutes) {
  const body = encode({ text: `${waiting.job} waits for ${minutes} minutes` });
  // The same key for a repeat, by which the receiver knows it.
  const headers = [["content-type", "application/json"], ["idempotency-key", `${key}/${waiting.since}`]];
  const { status } = send("hook", { method: "POST", path: "/", headers, body });
  if (status >= 300) throw `the webhook answered ${status}`;
  set(key, encode({ ...waiting, told: true }));
}

// What a capability throws is a variant: its payload is a text, or a number.
const reason = (error) => String(error?.payload?.val ?? error?.payload ?? error);

export const handler = {
  describe() {
    const needs = ["kv", "http:hook", "tick"];
    return { name: "stuck", version: "0.1.0", configSchema: "", needs, extra: [] };
  },

  check(text) {
    const { minutes } = JSON.parse(text);
    if (!Number.isInteger(minutes) || minutes < 1) {
      throw [{ path: "minutes", message: "is no number of minutes, such as 30" }];
    }
  },

  // One verdict for each state, in the same order.
  handle(states) {
    return states.map((state) => {
      try {
        note(state);
        return { tag: "done" };
      } catch (error) {
        return { tag: "retry", val: { afterMs: undefined, reason: reason(error) } };
      }
    });
  },
};

export const ticker = {
  tick() {
    const { minutes } = JSON.parse(config());
    for (const key of keys(NOTES, MOST)) {
      const waiting = decode(get(key));
      const waits = Math.floor((Number(nowMs()) - waiting.since) / 60000);
      if (waiting.told || waits < minutes) continue;
      try {
        tell(key, waiting, waits);
      } catch (error) {
        throw reason(error);
      }
    }
  },
};
