// Keeps the pages up to date. Everything is readable without it.
"use strict";

(() => {
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
    for (const input of part.querySelectorAll("input[data-utc]")) {
      const label = input.closest("label").querySelector("span");
      label.textContent = label.textContent.replace("(UTC)", "(your zone)");
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

  // ---- a page that follows ------------------------------------------------------------------

  // The page asks for its own content again, and its regions take over what has changed. What the reader does with the
  // page stays: the place under the pointer, the focus, a selection, an open part, and what was typed.

  // Between two looks; and a look takes at most a quarter of the time, so that a slow server is asked less often.
  const PAUSE = 1000;
  const SHARE = 4;
  const MOST = 30000;
  const AFTER_FAILURE = 5000;
  // A server that takes longer may be gone without a word: the page says so, and asks anew after a while. It gives up by
  // itself within 15 seconds.
  const LONG = 3000;
  const TOO_LONG = 20000;
  // A page that is told of news is looked at now and then without any: nothing else shows that the server is gone.
  const QUIET_SECONDS = 30;
  // The stream tells how far it is every second.
  const SILENCE = 5000;
  // What plugins make of a state comes after it.
  const AFTERMATH = [2500, 6000];

  const touched = new WeakSet();
  let pointer = null;

  const within = (part, node) => Boolean(node) && part.contains(node);
  // A browser lays the page out before it tells its selection, so each pass over the page asks once.
  let selected = null;
  const readSelection = () => {
    const selection = getSelection();
    selected = selection.isCollapsed || selection.rangeCount === 0 ? null : selection.getRangeAt(0);
  };
  const isSelected = (node) => Boolean(selected) && selected.intersectsNode(node);
  const keyOf = (node) => (node.nodeType === 1 && (node.id || node.dataset.uid || node.dataset.key)) || "";
  const rowOf = (node) => node && node.closest("[data-key], [data-uid], [id]");
  // A row that the reader points at or works in stays where it is.
  const isInUse = (node) =>
    Boolean(keyOf(node)) && (within(node, pointer) || within(node, document.activeElement) || isSelected(node));

  // What a reader chose or typed is theirs. A default that comes later would take the choice of a group away.
  const isTheirs = (field) =>
    field.type !== "hidden" && (touched.has(field) || Boolean(field.form && touched.has(field.form)));

  function adoptAttributes(from, to) {
    const isField = from.matches("input, select, textarea");
    const stays = (name) =>
      (name === "open" && from.localName === "details") ||
      (["checked", "value", "selected"].includes(name) && isField && isTheirs(from));
    const marks = ["came", "changed"].filter((name) => from.classList.contains(name));
    for (const { name } of [...from.attributes]) {
      if (!to.hasAttribute(name) && !stays(name) && name !== "class") from.removeAttribute(name);
    }
    for (const { name, value } of to.attributes) {
      if (name !== "class" && from.getAttribute(name) !== value && !stays(name)) from.setAttribute(name, value);
    }
    const classes = [to.getAttribute("class") || "", ...marks].join(" ").trim();
    if (classes !== (from.getAttribute("class") || "")) from.setAttribute("class", classes);
  }

  // `found.late` collects what has to wait until the reader is done with it, and `found.changed` the rows with news.
  function adopt(from, to, found) {
    if (from.nodeType !== 1) {
      if (from.nodeValue === to.nodeValue) return;
      if (isSelected(from)) found.late.add("text is selected");
      else from.nodeValue = to.nodeValue;
      return;
    }
    if (from.hasAttribute("data-own")) return;
    // An open list of choices closes when it changes.
    if (from.localName === "select" && (isTheirs(from) || from === document.activeElement)) return;
    const isNews = from.dataset.seq !== undefined && from.dataset.seq !== to.dataset.seq;
    adoptAttributes(from, to);
    if (from.localName !== "textarea" || !isTheirs(from)) adoptChildren(from, to, found);
    if (isNews) {
      from.classList.remove("changed");
      found.changed.push(from);
    }
  }

  // What is gone and stays for its reader only says so, and no form sends what was chosen in it.
  function outlive(row, found) {
    found.late.add("a row is in use");
    row.classList.add("leaves");
    row.title = "This is gone. It disappears once you leave it.";
    for (const field of row.querySelectorAll("input[name=seq]")) {
      field.checked = false;
      field.removeAttribute("name");
    }
    for (const button of row.querySelectorAll("button")) button.disabled = true;
  }

  function adoptChildren(from, to, found) {
    const wanted = new Set([...to.children].map(keyOf).filter(Boolean));
    const known = new Map([...from.children].map((child) => [keyOf(child), child]).filter(([key]) => key));
    const used = new Set();
    let at = from.firstChild;
    // What is not wanted any more goes, and what the reader works in stays in its place.
    const pass = () => {
      while (at) {
        const here = at;
        const key = keyOf(here);
        if (used.has(here)) at = here.nextSibling;
        else if (key && !wanted.has(key) && isInUse(here)) {
          outlive(here, found);
          at = here.nextSibling;
        } else if (key && !wanted.has(key)) {
          at = here.nextSibling;
          here.remove();
        } else return;
      }
    };
    const isAlike = (one, next) => one.nodeName === next.nodeName && !keyOf(one) && !used.has(one);
    for (const next of [...to.childNodes]) {
      pass();
      const key = keyOf(next);
      let match = key ? known.get(key) : at;
      if (used.has(match)) match = null;
      while (!key && match && !isAlike(match, next)) match = match.nextSibling;
      if (!match || match.nodeName !== next.nodeName) {
        from.insertBefore(newcomer(next, from), at);
        continue;
      }
      used.add(match);
      if (match === at) at = match.nextSibling;
      else if (isInUse(match)) found.late.add("a row is in use");
      else from.insertBefore(match, at);
      adopt(match, next, found);
    }
    while (at) {
      const here = at;
      at = here.nextSibling;
      if (used.has(here)) continue;
      if (isInUse(here)) outlive(here, found);
      else if (isSelected(here)) found.late.add("text is selected");
      else here.remove();
    }
  }

  // An animation begins again once the browser has laid the page out without it: once for all rows.
  function highlight(rows) {
    if (rows.length > 0) void document.body.getBoundingClientRect();
    for (const row of rows) row.classList.add("changed");
  }

  function newcomer(next, parent) {
    const node = document.importNode(next, true);
    if (keyOf(node)) node.classList.add("came");
    const form = parent.closest("form");
    if (node.nodeType === 1 && form && touched.has(form)) {
      for (const field of node.querySelectorAll("[checked]")) field.removeAttribute("checked");
    }
    return node;
  }

  // What is under the pointer stays there, or what has the focus, or else the first row that is seen.
  function anchored(change) {
    const seen = () =>
      scrollY > 0 && [...document.querySelectorAll("[data-live] tr")].find((row) => row.getBoundingClientRect().bottom > 0);
    const isWithin = (node) => node && node.nodeType === 1 && node.closest("[data-live]") && !node.matches("[data-live]");
    const anchor = [pointer, document.activeElement].find(isWithin) || seen();
    if (!anchor) {
      document.body.style.paddingBottom = "";
      return change();
    }
    const places = [];
    for (let node = anchor; node && !node.matches("[data-live]"); node = node.parentElement) {
      places.push([node, node.getBoundingClientRect().top]);
    }
    change();
    const [node, top] = places.find(([node]) => node.isConnected) || [];
    const moved = () => (node ? Math.round(node.getBoundingClientRect().top - top) : 0);
    if (!moved()) return;
    scrollBy({ top: moved(), behavior: "instant" });
    // A short page has no room to be scrolled.
    const lacks = moved();
    if (lacks <= 0) return;
    // Nor does a window have that the page does not fill.
    const unfilled = Math.max(0, innerHeight - Math.floor(document.body.getBoundingClientRect().bottom));
    const padding = (parseFloat(document.body.style.paddingBottom) || 0) + unfilled + lacks;
    document.body.style.paddingBottom = `${padding}px`;
    scrollBy({ top: lacks, behavior: "instant" });
  }

  const tickers = new WeakMap();

  // As the server writes it: `12 s`, `3 m 20 s`, `2 h 5 m`, `4 d 3 h`.
  function span(ms) {
    const seconds = Math.floor(ms / 1000);
    const [minutes, hours, days] = [60, 3600, 86400].map((unit) => Math.floor(seconds / unit));
    if (seconds < 1) return `${Math.floor(ms)} ms`;
    if (minutes < 1) return `${seconds} s`;
    if (hours < 1) return `${minutes} m ${seconds % 60} s`;
    return days < 1 ? `${hours} h ${minutes % 60} m` : `${days} d ${hours % 24} h`;
  }

  // The same, rounded to one unit.
  function age(ms) {
    const seconds = Math.floor(ms / 1000);
    if (seconds < 60) return `${seconds} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} m`;
    return seconds < 86400 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
  }

  // Times that are not over grow from what the server said last, whatever the clock here says.
  function tick() {
    // Nobody knows whether they grow where the page does not follow.
    if (["paused", "waiting"].includes(live.dataset.state)) return;
    readSelection();
    for (const part of document.querySelectorAll("[data-ticks], [data-age]")) {
      const said = part.dataset.ticks || part.dataset.age;
      let base = tickers.get(part);
      if (!base || base.ms !== said) tickers.set(part, (base = { ms: said, at: performance.now() }));
      const ms = Number(base.ms) + performance.now() - base.at;
      const text = part.dataset.age ? age(ms) : ms > 0 ? span(ms) : "";
      if (part.textContent !== text && !isSelected(part)) part.textContent = text;
    }
  }

  // Says so where a page is looked at less often than it should be.
  function slowPace(pause) {
    const [every, takes] = [pause, pause / SHARE].map((ms) => Math.round(ms / 1000));
    return pause < 2 * PAUSE ? "" : `Live, every ${every} s: this page takes ${takes} s`;
  }

  // Looks at the page again, and says how that went: `soon` is for what has changed, `now` for a page that was not looked
  // at for a while. It answers the position up to which the page knows the states.
  function renewal(say) {
    let [tag, timer, due, last, pause, looking, isLate, isAgain] = ["", 0, Infinity, -Infinity, PAUSE, null, false, false];

    const read = async () => {
      const headers = { "kubewitness-content": "again" };
      if (tag) headers["if-none-match"] = tag;
      const answer = await fetch(location.href, { headers, cache: "no-store", signal: AbortSignal.timeout(TOO_LONG) });
      if (answer.redirected) {
        say.elsewhere(answer.url);
        return null;
      }
      if (answer.status !== 304 && !answer.ok) throw new Error(`the server answers ${answer.status}`);
      const found = { late: new Set(), changed: [] };
      if (answer.status !== 304) {
        const text = await answer.text();
        // Paused meanwhile.
        if (say.rests()) return null;
        const page = new DOMParser().parseFromString(text, "text/html");
        zones(page);
        copies(page);
        readSelection();
        anchored(() => {
          for (const region of document.querySelectorAll("[data-live]")) {
            const now = page.getElementById(region.id);
            if (now) adopt(region, now, found);
          }
          compareChoices();
          tick();
        });
        highlight(found.changed);
        // What waits is taken over by the next look, also if the page is the same by then.
        isLate = found.late.size > 0;
        tag = isLate ? "" : answer.headers.get("etag") || "";
      }
      const late = found.late.has("text is selected") ? "text is selected" : "";
      return { late, position: answer.headers.get("kubewitness-position") };
    };
    const look = async () => {
      [timer, due, last] = [0, Infinity, performance.now()];
      const next = (least) => Math.min(MOST, Math.max(least, SHARE * (performance.now() - last)));
      const slow = setTimeout(() => say.failed("the server has not answered yet"), Math.max(LONG, (2 * pause) / SHARE));
      try {
        const seen = await read();
        pause = next(PAUSE);
        // Somebody who was signed out has been led elsewhere, and a pause that began meanwhile holds.
        if (!seen) return null;
        say.done(seen.late, pause, seen.position);
        return seen.position;
      } catch (error) {
        tag = "";
        const isAway = error instanceof TypeError || error.name === "TimeoutError";
        say.failed(isAway ? "the server does not answer" : error.message);
        // A server in trouble is asked less often, whoever asks.
        pause = next(AFTER_FAILURE);
        soon(AFTER_FAILURE);
        return null;
      } finally {
        clearTimeout(slow);
      }
    };
    const now = () => {
      clearTimeout(timer);
      due = Infinity;
      // It may have been asked before what has changed now.
      isAgain = Boolean(looking);
      looking = looking || look().finally(() => {
        looking = null;
        if (isAgain) soon();
        isAgain = false;
      });
      return looking;
    };
    const soon = (ms = 50) => {
      const at = Math.max(performance.now() + ms, last + pause);
      if (at >= due) return;
      clearTimeout(timer);
      due = at;
      timer = setTimeout(() => (document.hidden || say.rests() ? (due = Infinity) : now()), at - performance.now());
    };
    return { now, soon, waits: () => isLate && soon() };
  }

  // ---- chosen dead letters -----------------------------------------------------------------

  // Somebody else may replay or drop what a reader has chosen. The page says which ones are gone, the buttons name how
  // many are left, and where none is left, they do not mean all letters of the plugin.
  function letterChoices() {
    const NAMED = 20;
    const place = document.getElementById("gone-letters");
    // By plugin: the positions that are chosen, and those of them that are gone.
    const plugins = new Map();
    const of = (plugin) => {
      if (!plugins.has(plugin)) plugins.set(plugin, { chosen: new Set(), gone: new Set() });
      return plugins.get(plugin);
    };
    const forms = () => [...document.querySelectorAll("form.replay")].filter((form) => form.querySelector("[name=plugin]"));
    const pluginOf = (form) => form.querySelector("[name=plugin]").value;
    const checked = (form) => new Set([...form.querySelectorAll("[name=seq]:checked:enabled")].map((box) => box.value));

    const positions = (seqs) => {
      const named = [...seqs].sort((a, b) => a - b).slice(0, NAMED).join(", ");
      return `${seqs.size === 1 ? "position" : "positions"} ${named}${seqs.size > NAMED ? " and more" : ""}`;
    };
    const sentence = ([plugin, { chosen, gone }]) => {
      const all = chosen.size + gone.size;
      const which = all === 1 ? "the dead letter" : `${gone.size} of the ${all} dead letters`;
      const rest = chosen.size > 0 ? `The buttons take the other ${chosen.size}.` : "Nothing is left of your choice.";
      return (
        `${plugin}: ${which} that you chose ${gone.size === 1 ? "is" : "are"} gone (${positions(gone)}). ${rest} ` +
        "A dead letter goes when somebody replays or drops it, or when it moves to another page."
      );
    };
    const tell = () => {
      const lost = [...plugins].filter(([, { gone }]) => gone.size > 0);
      const told = lost.map(sentence);
      // What is said already is not said again.
      if ([...place.querySelectorAll("p")].map((line) => line.firstChild.nodeValue).join() === told.join()) return;
      place.replaceChildren(
        ...lost.map(([plugin, choice], index) => {
          const [line, button] = [document.createElement("p"), document.createElement("button")];
          line.className = "notice";
          [button.type, button.textContent] = ["button", "OK"];
          button.setAttribute("aria-label", `OK, forget what is gone of ${plugin}`);
          button.addEventListener("click", () => {
            choice.gone.clear();
            show();
          });
          line.append(told[index], button);
          return line;
        }),
      );
    };
    const show = () => {
      for (const form of forms()) {
        const { chosen, gone } = of(pluginOf(form));
        for (const count of form.querySelectorAll(".count")) {
          const text = chosen.size > 0 ? ` ${chosen.size} ` : " ";
          if (count.textContent !== text) count.textContent = text;
        }
        for (const button of form.querySelectorAll("button")) {
          if (chosen.size === 0 && gone.size > 0) button.setAttribute("aria-disabled", "true");
          else button.removeAttribute("aria-disabled");
        }
      }
      tell();
    };
    // The reader has chosen.
    const choose = () => {
      for (const form of forms()) {
        const choice = of(pluginOf(form));
        choice.chosen = checked(form);
        choice.chosen.forEach((seq) => choice.gone.delete(seq));
      }
      show();
    };
    // The page has taken over what has changed.
    const compare = () => {
      const now = new Map(forms().map((form) => [pluginOf(form), checked(form)]));
      for (const [plugin, choice] of plugins) {
        const left = now.get(plugin) || new Set();
        for (const seq of choice.chosen) if (!left.has(seq)) choice.gone.add(seq);
        left.forEach((seq) => choice.gone.delete(seq));
        choice.chosen = left;
      }
      show();
    };

    document.addEventListener("change", ({ target }) => target.name === "seq" && choose());
    // A browser may show the choice of before once the page is there.
    addEventListener("pageshow", choose);
    document.addEventListener("submit", (event) => {
      const form = event.target;
      if (!form.matches("form.replay")) return;
      if (form.querySelector("button[aria-disabled]")) {
        event.preventDefault();
        place.scrollIntoView({ block: "nearest" });
        place.querySelector("button").focus();
      }
    });
    document.addEventListener("formdata", ({ target, formData }) => {
      if (!target.matches("form.replay")) return;
      const { chosen } = of(pluginOf(target));
      if (chosen.size > 0) formData.set("chosen", chosen.size);
    });
    return compare;
  }

  // ---- the button ------------------------------------------------------------------------

  // Tells how the page follows, and pauses it. `lost` says why it does not follow where it should.
  function indicator(lost, { leave, comeBack }) {
    let [isPaused, pace] = [false, "Live"];
    const show = () => {
      const why = isPaused ? "by you" : document.hidden ? "this tab is hidden" : "";
      live.hidden = false;
      live.dataset.state = why ? "paused" : lost() ? "waiting" : "open";
      const text = why || lost() ? `Paused: ${why || lost()}` : pace;
      if (live.textContent !== text) live.textContent = text;
      live.title = isPaused ? "Go on" : "Pause";
    };
    const isLookedAt = () => !isPaused && !document.hidden;
    const turn = () => {
      show();
      if (isLookedAt()) comeBack();
      else leave();
    };
    document.addEventListener("visibilitychange", turn);
    live.addEventListener("click", () => {
      isPaused = !isPaused;
      turn();
    });
    const setPace = (pause) => {
      pace = slowPace(pause) || "Live";
      show();
    };
    return { show, setPace, isLookedAt, isPaused: () => isPaused };
  }

  // Whoever is signed out is led to where they sign in. The server can't see that there was a session: its cookie is
  // gone where they have signed out in another window. A page that is left by its log-out is not led elsewhere.
  const logOut = document.querySelector('form[action="/logout"]');
  let isLeft = false;
  if (logOut) logOut.addEventListener("submit", () => (isLeft = true));
  function signIn(address) {
    if (isLeft) return;
    const to = new URL(address);
    if (document.querySelector(".person b")) to.searchParams.set("ended", "true");
    location.assign(to);
  }

  // ---- the stream ------------------------------------------------------------------------

  // One connection a browser, and none while nobody looks. Of the pages that somebody looks at, one holds the stream and
  // a lock, and tells the others. The browser gives the lock to another page once this one is hidden, closed or gone.
  // Where a browser has no locks, each page has a stream of its own.
  function follow(onState, onCauses) {
    const reader = document.querySelector(".person b");
    // What somebody else may see is for the pages that they have opened.
    // Pages of an older controller tell one another something else.
    const name = `kubewitness stream 2 ${reader ? reader.title : ""}`;
    const channel = navigator.locks && window.BroadcastChannel ? new BroadcastChannel(name) : null;
    // An event's id is for the server alone. Positions are compared.
    let last = { id: live.dataset.after, seq: parseInt(live.dataset.after, 10) };
    let looking = null;
    let [lead, restart] = [null, null];
    let [stream, trouble, waits] = ["opening", "", ""];

    const lost = () => (["open", "opening"].includes(stream) ? trouble || waits : "the connection is lost");
    const button = indicator(lost, { leave: () => leave(), comeBack: () => comeBack() });
    const { show } = button;
    const renew = renewal({
      done: (late, pause, position) => {
        [trouble, waits] = ["", late];
        button.setPace(pause);
        checkStream(parseInt(position, 10));
      },
      failed: (why) => {
        trouble = why;
        show();
      },
      elsewhere: (address) => elsewhere(address),
      rests: button.isPaused,
    });

    const elsewhere = (address) => button.isLookedAt() && signIn(address);

    // A connection may be dead without an error, after a sleep or behind a router. Then the page knows of states that the
    // stream has not told, and it tells nothing more.
    const checkStream = (seen) => {
      const before = last.seq;
      if (!restart || !(seen > before)) return;
      setTimeout(() => restart && last.seq === before && restart(), SILENCE);
    };

    const take = ({ type, id, seq, data }) => {
      if (type === "state" && seq > last.seq) {
        last = { id, seq };
        onState(JSON.parse(data), renew);
      } else if (type === "causes") {
        onCauses(renew);
      } else if (type === "position" && seq > last.seq) {
        last = { id, seq };
      } else if (type === "open" || type === "waiting" || type === "refused") {
        stream = type;
        show();
        if (type === "refused") fetch(location.href, { method: "HEAD" }).then((answer) => answer.redirected && elsewhere(answer.url), () => {});
      } else if (type === "reset") {
        location.reload();
      }
    };
    const tell = (message) => {
      if (channel) channel.postMessage(message);
      take(message);
    };

    // Holds the stream until nobody looks at this page.
    const hold = (signal) =>
      new Promise((done) => {
        let [source, again, from, type] = [null, null, last, "waiting"];
        const open = () => {
          source = new EventSource(`/api/v1/events?after=${encodeURIComponent(from.id)}`);
          source.addEventListener("open", () => tell({ type: (type = "open") }));
          source.addEventListener("error", () => {
            type = "waiting";
            // A refusal is final for the browser; it is not for us.
            const isRefused = source.readyState === EventSource.CLOSED;
            if (isRefused) again = setTimeout(open, 5000);
            tell({ type: isRefused ? "refused" : type });
          });
          source.addEventListener("state", ({ lastEventId, data }) => {
            from = { id: lastEventId, seq: JSON.parse(data).seq };
            tell({ type: "state", ...from, data });
          });
          source.addEventListener("position", ({ lastEventId, data }) => {
            from = { id: lastEventId, seq: Number(data) };
            tell({ type: "position", ...from });
          });
          source.addEventListener("causes", () => tell({ type: "causes" }));
          source.addEventListener("reset", () => tell({ type: "reset" }));
        };
        const close = () => {
          clearTimeout(again);
          source.close();
        };
        restart = () => {
          close();
          open();
        };
        // A page that lacks older states gets them. The others know by their positions that they have them.
        lead = (position) => {
          if (position.seq >= from.seq) return tell({ type });
          from = position;
          restart();
        };
        signal.addEventListener("abort", () => {
          close();
          [lead, restart] = [null, null];
          done();
        });
        open();
        if (channel) channel.postMessage({ type: "lead" });
      });

    const look = () => {
      if (looking || !button.isLookedAt()) return;
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
      show();
    };
    // Nothing that came meanwhile is read one by one, however much it is: the page is looked at as it is now.
    const comeBack = async () => {
      const position = await renew.now();
      const seq = parseInt(position, 10);
      if (seq > last.seq) last = { id: position, seq };
      look();
      show();
    };
    const join = () => channel.postMessage({ type: "join", ...last });
    if (channel) {
      channel.onmessage = ({ data }) => {
        if (data.type === "join") return lead && lead({ id: data.id, seq: data.seq });
        // Nobody goes on from a position of a journal that was replaced.
        if (!looking && data.type !== "reset") return;
        if (data.type === "lead") join();
        else take(data);
      };
    }

    if (logOut) logOut.addEventListener("submit", leave);
    look();
    return renew;
  }

  // Follows the states that the page is about.
  function news() {
    const { uid, owner: outermost, kind, namespace, causes } = live.dataset;
    // A state names its outermost owner: for a pod of a job of a CronJob, that is the CronJob.
    const isOwned = ({ uid: by }) => by === uid || by === outermost;
    const isOurs = ({ object, owner }) =>
      uid ? object.uid === uid || (owner && isOwned(owner)) : sameKind(kind, object.kind) && (!namespace || object.namespace === namespace);
    let changes = 0;
    let aftermath = [];
    const renew = follow((state, renew) => {
      if (!isOurs(state)) return;
      changes += 1;
      renew.soon();
      aftermath.forEach(clearTimeout);
      aftermath = AFTERMATH.map((ms) => setTimeout(renew.soon, ms));
    }, (renew) => {
      // A cause comes without a state, some seconds after the one that ended its object. All pages hear of it at once,
      // and do not ask at once.
      if (uid || causes !== undefined) renew.soon(50 + Math.random() * 450);
    });

    // Said aloud now and then, not for each change.
    const summary = document.getElementById("summary");
    if (summary) setInterval(() => {
      if (!changes) return;
      const told = [...document.querySelectorAll(".counts a")].map((link) => link.textContent.trim());
      summary.textContent = `${changes} changes. ${told.join(", ")}.`;
      changes = 0;
    }, 15000);
    return renew;
  }

  // A page of figures has no states to follow: it is looked at every second.
  function figures() {
    let lost = "";
    const button = indicator(() => lost, { leave() {}, comeBack: () => renew.now() });
    const renew = renewal({
      done: (late, pause) => {
        lost = late;
        button.setPace(pause);
      },
      failed: (why) => {
        lost = why;
        button.show();
      },
      elsewhere: signIn,
      rests: button.isPaused,
    });
    button.show();
    return renew;
  }

  function keepUp() {
    const region = document.querySelector("[data-live]");
    const renew = live.dataset.after === undefined ? figures() : news();
    setInterval(renew.soon, Number(region.dataset.refresh || QUIET_SECONDS) * 1000, 0);
    setInterval(tick, 1000);
    // The page keeps its place by itself; a browser that did so as well would move it twice.
    document.documentElement.style.overflowAnchor = "none";
    document.addEventListener("pointerover", (event) => {
      const before = pointer;
      pointer = event.pointerType === "touch" ? null : event.target;
      // A row that has waited for the pointer to leave.
      if (before && rowOf(before) !== rowOf(pointer)) renew.waits();
    });
    document.addEventListener("focusout", ({ target, relatedTarget }) => {
      if (rowOf(target) !== rowOf(relatedTarget)) renew.waits();
    });
    document.documentElement.addEventListener("pointerleave", () => {
      pointer = null;
      renew.waits();
    });
    document.addEventListener("selectionchange", () => getSelection().isCollapsed && renew.waits());
    for (const type of ["input", "change"]) {
      document.addEventListener(type, ({ target }) => {
        touched.add(target);
        if (target.form) touched.add(target.form);
      });
    }
    document.addEventListener("animationend", ({ target }) => target.classList.remove("came", "changed"));
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
    copies(document);
    document.addEventListener("click", async ({ target }) => {
      const button = target.closest("[data-copy]");
      if (!button) return;
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    });
  }

  function copies(part) {
    for (const button of part.querySelectorAll("[data-copy]")) button.hidden = !navigator.clipboard;
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

  const compareChoices = document.getElementById("gone-letters") ? letterChoices() : () => {};
  theme();
  keys();
  zone();
  if (document.querySelector("[data-live]")) keepUp();
})();
