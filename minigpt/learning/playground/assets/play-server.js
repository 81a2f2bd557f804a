// Asking the server. Every question carries the token that stands in this page's address, behind the #.
"use strict";

const token = location.hash.slice(1);

/** Asks one question; returns the answer, or throws an Error with a sentence for a person. */
async function ask(name, question, signal) {
  const answer = await (await post(name, question, signal)).json();
  if (answer.error) throw new Error(answer.error);
  return answer;
}

/** Asks a question whose answer comes in lines: an asynchronous generator of values. */
async function* lines(name, question, signal) {
  const reader = (await post(name, question, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) {
      const answer = JSON.parse(part);
      if (answer.error) throw new Error(answer.error);
      yield answer;
    }
  }
}

async function post(name, question, signal) {
  let answer;
  try {
    answer = await fetch(`/api/${name}`, {
      method: "POST", signal, body: JSON.stringify(question), cache: "no-store",
      headers: { "Content-Type": "application/json", "X-Minigpt-Token": token },
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The playground has ended: start it again, and open the address that it prints.");
  }
  if (!answer.ok) throw new Error(`The playground refused: ${(await answer.json()).error}.`);
  return answer;
}

/** A function that asks for the newest state only: while one question is under way, later calls become one more. */
function newestOnly(act) {
  let busy = false, again = false;
  return async function run() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      do { again = false; await act(); } while (again);
    } finally { busy = false; }
  };
}

/** Runs something, and shows what goes wrong; what was stopped is no problem. */
async function shownProblems(act) {
  const box = byId("problem");
  try {
    const result = await act();
    return result;
  } catch (error) {
    if (error.name !== "AbortError") {
      box.textContent = error.message;
      box.classList.remove("hidden");
    }
    return undefined;
  }
}

function noProblem() { byId("problem").classList.add("hidden"); }

/** A sentence for screen readers. */
function say(text) { byId("say").textContent = text; }
