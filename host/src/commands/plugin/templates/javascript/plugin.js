// Logs each job that comes to a phase of your choice.

import { get as config } from "kubewitness:plugin/config@1.2.0";
import { write as log } from "kubewitness:plugin/log@1.2.0";

export const handler = {
  describe() {
    return { name: "{{name}}", version: "0.1.0", configSchema: "", needs: [], extra: [] };
  },

  check(text) {
    const { phase } = JSON.parse(text);
    if (typeof phase !== "string" || !phase) {
      throw [{ path: "phase", message: "has to be a text, such as Failed" }];
    }
  },

  // One verdict for each state, in the same order.
  handle(states) {
    const { phase } = JSON.parse(config());
    return states.map((state) => {
      if (state.change === "present" && state.status.phase === phase) {
        log("warn", "a job needs you", [["job", state.object.name], ["why", state.status.reason]]);
      }
      return { tag: "done" };
    });
  },
};
