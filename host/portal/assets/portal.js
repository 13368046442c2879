// Keeps the pages up to date. Everything is readable without it.
"use strict";

(() => {
  const table = document.getElementById("objects");
  const newer = document.getElementById("newer");
  const figures = document.getElementById("figures");
  const live = document.getElementById("live");

  const lower = (text) => (text || "").toLowerCase();
  const sameKind = (asked, kind) =>
    lower(asked) === "all" ? kind !== "Event" : [kind, kind + "s"].map(lower).includes(lower(asked));

  // ---- times -----------------------------------------------------------------------------

  const remembered = (key) => {
    try {
      return localStorage.getItem(key);
    } catch {
      // A browser that keeps nothing has each page begin anew.
      return null;
    }
  };
  const remember = (key, value) => {
    try {
      localStorage.setItem(key, value);
    } catch {
      // It holds for this page then.
    }
  };

  // Pages come with UTC. A reader elsewhere sees their own zone, with UTC where a time is pointed at, or the reverse.
  const isElsewhere = [0, 6].some((month) => new Date(2026, month, 1).getTimezoneOffset() !== 0);
  const isOwn = isElsewhere && remembered("times") !== "utc";

  const utc = (date) => date.toISOString().slice(0, 19).replace("T", " ");
  // The same figures as UTC has them, whatever the language of the browser is.
  const own = (date) => utc(new Date(date.valueOf() - date.getTimezoneOffset() * 60000));

  function tell(time) {
    const date = new Date(time.dateTime);
    if (Number.isNaN(date.valueOf())) return;
    time.textContent = isOwn ? own(date) : utc(date);
    if (isElsewhere) time.title = isOwn ? `${utc(date)} UTC` : `${own(date)} in your zone`;
  }

  function zones(part) {
    if (!isOwn) return;
    part.querySelectorAll("time[datetime]").forEach(tell);
    for (const text of part.querySelectorAll("svg [data-ms]")) {
      const ms = Number(text.dataset.ms);
      const tenths = text.hasAttribute("data-tenths") ? `.${Math.floor(ms / 100) % 10}` : "";
      text.textContent = own(new Date(ms)).slice(11) + tenths;
    }
    for (const text of part.querySelectorAll("svg title, svg desc")) {
      const told = (time) => own(new Date(`${time.replace(" ", "T")}Z`));
      text.textContent = text.textContent.replace(/\d{4}-\d\d-\d\d \d\d:\d\d:\d\d/g, told);
    }
  }

  // What a reader types is a time of their own zone too, and is sent as one of UTC. One that names its zone stays.
  function typedTimes() {
    if (!isOwn) return;
    const plain = /^\s*(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d)?))?\s*$/;
    const read = (text, zone) => {
      const parts = plain.exec(text);
      const date = parts && new Date(`${parts[1]}T${parts[2] || "00:00"}${zone}`);
      return date && !Number.isNaN(date.valueOf()) ? date : null;
    };
    for (const input of document.querySelectorAll("input[data-utc]")) {
      const given = read(input.value, "Z");
      if (given) input.value = own(given);
      const label = input.closest("label").querySelector("span");
      label.textContent = label.textContent.replace("(UTC)", "(your zone)");
      input.form.addEventListener("formdata", ({ formData }) => {
        const date = read(input.value, "");
        if (date) formData.set(input.name, utc(date));
      });
    }
  }

  function zone() {
    if (!isElsewhere) return;
    const button = document.getElementById("zone");
    const name = Intl.DateTimeFormat().resolvedOptions().timeZone || "your zone";
    button.hidden = false;
    button.textContent = `Times: ${isOwn ? name : "UTC"}`;
    button.title = isOwn ? "Show UTC" : `Show ${name}`;
    document.getElementById("times").hidden = true;
    button.addEventListener("click", () => {
      remember("times", isOwn ? "utc" : "own");
      location.reload();
    });
    zones(document);
    typedTimes();
  }

  // ---- the stream ------------------------------------------------------------------------

  // One connection a browser, and none while nobody looks. Of the pages that somebody looks at, one holds the stream and
  // a lock, and tells the others. The browser gives the lock to another page once this one is hidden, closed or gone.
  // Where a browser has no locks, each page has a stream of its own.
  function follow(after, onState) {
    const reader = document.querySelector(".person b");
    // What somebody else may see is for the pages that they have opened.
    const name = `kubewitness stream ${reader ? reader.title : ""}`;
    const channel = navigator.locks && window.BroadcastChannel ? new BroadcastChannel(name) : null;
    // A position is a number and what stands there, which the server compares.
    const place = (position) => parseInt(position, 10);
    let last = after;
    let paused = false;
    let looking = null;
    let lead = null;

    const show = (state, text) => {
      live.hidden = false;
      live.dataset.state = state;
      live.textContent = text;
      live.title = paused ? "Go on" : "Pause";
    };
    const take = ({ type, id, data }) => {
      if (type === "state" && place(id) > place(last)) {
        last = id;
        onState(JSON.parse(data));
      } else if (type === "open") {
        show("open", "Live");
      } else if (type === "waiting") {
        show("waiting", "Reconnecting");
      } else if (type === "refused") {
        show("waiting", "Reconnecting");
        fetch(location.href, { method: "HEAD" }).then((answer) => answer.redirected && signIn(answer.url), () => {});
      } else if (type === "reset") {
        location.reload();
      }
    };
    const tell = (message) => {
      if (channel) channel.postMessage(message);
      take(message);
    };

    // Whoever is signed out is led to where they sign in. The server can't see that there was a session: its cookie is
    // gone where they have signed out in another window.
    const signIn = (address) => {
      if (!looking) return;
      const to = new URL(address);
      if (reader) to.searchParams.set("ended", "true");
      location.assign(to);
    };

    // Holds the stream until nobody looks at this page.
    const hold = (signal) =>
      new Promise((done) => {
        let [stream, again, from, type] = [null, null, last, "waiting"];
        const open = () => {
          stream = new EventSource(`/api/v1/events?after=${from}`);
          stream.addEventListener("open", () => tell({ type: (type = "open") }));
          stream.addEventListener("error", () => {
            type = "waiting";
            // A refusal is final for the browser; it is not for us.
            const isRefused = stream.readyState === EventSource.CLOSED;
            if (isRefused) again = setTimeout(open, 5000);
            tell({ type: isRefused ? "refused" : type });
          });
          stream.addEventListener("state", (event) => {
            from = event.lastEventId;
            tell({ type: "state", id: from, data: event.data });
          });
          stream.addEventListener("reset", () => tell({ type: "reset" }));
        };
        const close = () => {
          clearTimeout(again);
          stream.close();
        };
        // A page that lacks older states gets them. The others know by their positions that they have them.
        lead = (position) => {
          if (place(position) >= place(from)) return tell({ type });
          close();
          from = position;
          open();
        };
        signal.addEventListener("abort", () => {
          close();
          lead = null;
          done();
        });
        open();
        if (channel) channel.postMessage({ type: "lead" });
      });

    const look = () => {
      if (looking || paused || document.hidden) return;
      looking = new AbortController();
      const { signal } = looking;
      if (!channel) return hold(signal);
      navigator.locks.request(name, { signal }, () => signal.aborted || hold(signal)).catch(() => {
        // It was given up before it was this page's turn; or the browser keeps its locks from this page.
        if (!signal.aborted) hold(signal);
      });
      join();
    };
    const leave = () => {
      if (looking) looking.abort();
      looking = null;
    };
    const join = () => channel.postMessage({ type: "join", id: last });
    if (channel) {
      channel.onmessage = ({ data }) => {
        if (data.type === "join") return lead && lead(data.id);
        // Nobody goes on from a position of a journal that was replaced.
        if (!looking && data.type !== "reset") return;
        if (data.type === "lead") join();
        else take(data);
      };
    }

    document.addEventListener("visibilitychange", () => (document.hidden ? leave() : look()));
    // A page that is left for another one is not led elsewhere by the end of its stream.
    const logOut = document.querySelector('form[action="/logout"]');
    if (logOut) logOut.addEventListener("submit", leave);
    // What comes meanwhile is not lost: the page goes on from the last state that it has.
    live.addEventListener("click", () => {
      paused = !paused;
      if (!paused) return look();
      leave();
      show("paused", "Paused");
    });
    look();
  }

  // ---- the list --------------------------------------------------------------------------

  function list() {
    const body = table.tBodies[0];
    const template = document.getElementById("row");
    const fresh = document.getElementById("fresh");
    const summary = document.getElementById("summary");
    const { kind, namespace, phase, labels } = table.dataset;
    const rows = new Map([...body.rows].map((row) => [row.dataset.uid, row]));
    const waiting = new Map();
    let changes = 0;

    const chip = (name) => document.querySelector(`.counts a[data-phase="${CSS.escape(name)}"]`);
    const count = (name, by) => {
      const link = chip(name);
      if (!link) return;
      const figure = link.querySelector("b");
      const now = Math.max(0, Number(figure.textContent.replace(/\D/g, "")) + by);
      figure.textContent = String(now);
      link.hidden = now === 0 && !link.hasAttribute("aria-current");
    };

    const why = (cell, status) => {
      cell.replaceChildren();
      const add = (name, text) => {
        if (!text) return;
        const span = document.createElement("span");
        span.className = name;
        span.textContent = text;
        if (name === "message") span.title = text;
        if (cell.childNodes.length) cell.append(" ");
        cell.append(span);
      };
      // A deletion's reason is the phase before.
      add("reason", status.phase === "Deleted" ? "" : status.reason);
      add(status.exit_code ? "exit fault" : "exit", status.exit_code === undefined ? "" : `exit ${status.exit_code}`);
      add("message", status.message);
    };

    const fill = (row, state) => {
      const { object, status } = state;
      const cell = (name) => row.querySelector(`[data-f="${name}"]`) || document.createElement("td");
      const time = row.querySelector("time");
      time.dateTime = new Date(state.observed_ms).toISOString();
      tell(time);
      row.dataset.seq = state.seq;
      const badge = row.querySelector(".phase");
      // What an Event says stands in its document alone.
      if (!badge) return;
      badge.dataset.phase = badge.textContent = status.phase;
      const link = cell("name");
      link.textContent = link.title = object.name;
      link.href = `/objects/${encodeURIComponent(object.uid)}`;
      cell("kind").textContent = object.kind;
      cell("namespace").textContent = object.namespace;
      cell("ready").textContent = status.total > 0 ? `${status.ready}/${status.total}` : "";
      cell("attempt").textContent = status.attempt > 1 ? status.attempt - 1 : "";
      why(cell("why"), status);
      row.dataset.uid = object.uid;
    };

    // New rows wait for a click, so that nothing moves under the cursor or the finger.
    const offer = (count = waiting.size) => {
      fresh.hidden = count === 0;
      fresh.textContent = labels ? `${count} more: look again` : `Show ${count} new`;
    };
    fresh.addEventListener("click", () => {
      if (labels) return location.reload();
      const empty = document.querySelector("main > .empty");
      if (empty) empty.remove();
      table.hidden = false;
      for (const state of waiting.values()) {
        const row = template.content.firstElementChild.cloneNode(true);
        fill(row, state);
        rows.set(state.object.uid, row);
        body.prepend(row);
      }
      waiting.clear();
      offer();
      const first = body.querySelector("a");
      if (first) first.focus({ preventScroll: true });
    });

    follow(table.dataset.after, (state) => {
      const { object, status } = state;
      if (state.change === "gap" || state.late) return;
      if (!sameKind(kind, object.kind) || (namespace && object.namespace !== namespace)) return;
      changes += 1;
      changed = true;
      const row = rows.get(object.uid);
      // A state doesn't tell its labels: only the server knows whether a new row belongs here, and is asked below.
      if (labels && !row) return;
      const known = waiting.get(object.uid);
      const before = row ? row.querySelector('[data-f="phase"] [data-phase]')?.dataset.phase : known && known.status.phase;
      if (row && Number(row.dataset.seq) >= state.seq) return;
      const previous = before || (state.previous && state.previous.phase);
      if (previous !== status.phase) {
        if (previous) count(previous, -1);
        if (state.change === "present") count(status.phase, 1);
      }
      if (row) {
        fill(row, state);
        row.classList.remove("changed");
        void row.offsetWidth;
        row.classList.add("changed");
      } else if (state.change !== "present") {
        waiting.delete(object.uid);
        offer();
      } else if (!phase || status.phase === phase) {
        waiting.set(object.uid, state);
        offer();
      }
    });

    // How long rows waited and ran, and what plugins have, is known to the server alone. Nothing moves.
    let changed = false;
    setInterval(async () => {
      if (document.hidden || !changed || live.dataset.state === "paused") return;
      changed = false;
      try {
        const answer = await fetch(location.href);
        if (!answer.ok) throw new Error(answer.statusText);
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        let others = 0;
        for (const now of page.querySelectorAll("#objects tbody tr")) {
          const row = rows.get(now.dataset.uid);
          others += row ? 0 : 1;
          // Times of another state than the one that is shown would not fit it.
          if (!row || now.dataset.seq !== row.dataset.seq) continue;
          for (const name of ["queued", "running", "attempt", "submitter", "plugins", "created"]) {
            const [to, from] = [row, now].map((it) => it.querySelector(`[data-f="${name}"]`));
            if (to && from) to.replaceChildren(...from.childNodes);
          }
        }
        if (labels) offer(others);
      } catch {
        // The next round tries again, also if nothing more has changed.
        changed = true;
      }
    }, 10000);

    // Said aloud now and then, not for each change.
    setInterval(() => {
      if (!changes) return;
      const told = [...document.querySelectorAll(".counts a:not([hidden])")].map((link) => link.textContent.trim());
      summary.textContent = `${changes} changes. ${told.join(", ")}.`;
      changes = 0;
    }, 15000);
  }

  // ---- one object ------------------------------------------------------------------------

  function object() {
    let count = 0;
    follow(newer.dataset.after, (state) => {
      const uid = newer.dataset.uid;
      if (state.object.uid !== uid && !(state.owner && state.owner.uid === uid)) return;
      count += 1;
      newer.hidden = false;
      newer.textContent = count === 1 ? "1 newer state: load it" : `${count} newer states: load them`;
    });
  }

  // ---- figures ---------------------------------------------------------------------------

  function refresh() {
    setInterval(async () => {
      const busy = figures.contains(document.activeElement) || !getSelection().isCollapsed;
      if (document.hidden || busy) return;
      try {
        const answer = await fetch(location.href);
        if (!answer.ok) return;
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const now = page.getElementById("figures");
        if (now) figures.replaceChildren(...now.childNodes);
        zones(figures);
      } catch {
        // The next round tries again.
      }
    }, Number(figures.dataset.refresh) * 1000);
  }

  // ---- everywhere --------------------------------------------------------------------------

  function keys() {
    document.addEventListener("keydown", (event) => {
      const typing = event.target.closest("input, select, textarea");
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      const search = document.getElementById("search");
      if (event.key === "/" && search) {
        event.preventDefault();
        search.focus();
      }
      const help = document.getElementById("keys");
      if (event.key === "?" && help) {
        help.open = !help.open;
        if (help.open) help.scrollIntoView({ block: "nearest" });
      }
    });
    for (const button of document.querySelectorAll("[data-copy]")) {
      button.hidden = !navigator.clipboard;
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(button.dataset.copy);
        button.textContent = "Copied";
      });
    }
  }

  // What a reader's browser remembers; without it the page follows the system.
  function theme() {
    const button = document.getElementById("theme");
    const names = ["system", "light", "dark"];
    let chosen = names.find((name) => name === remembered("theme")) || "system";
    const show = () => {
      if (chosen === "system") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = chosen;
      button.textContent = `Theme: ${chosen}`;
    };
    button.hidden = false;
    button.addEventListener("click", () => {
      chosen = names[(names.indexOf(chosen) + 1) % names.length];
      show();
      remember("theme", chosen);
    });
    show();
  }

  theme();
  keys();
  zone();
  if (table) list();
  if (newer) object();
  if (figures) refresh();
})();
