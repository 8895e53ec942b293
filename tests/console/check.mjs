// Opens the console in headless Chromium while a cluster works: hosts are shown, progress moves, an answer streams in, the keyboard
// reaches everything, a wrong token opens nothing, and axe-core finds no violation, light and dark. `tests/console.py` starts the cluster
// and runs this.

import { createRequire } from "node:module";
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

const [address, browserPath, token, picture] = process.argv.slice(2);
const require = createRequire(`${process.cwd()}/`);
const puppeteer = require("puppeteer-core");
const axe = require("axe-core");
const DEADLINE = { timeout: Number(process.env.CONSOLE_DEADLINE_MS ?? 60_000) };

const text = (page, selector) => page.$eval(selector, (found) => found.textContent);
const until = (page, condition, ...given) => page.waitForFunction(condition, DEADLINE, ...given);

async function violations(page, scheme) {
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await page.evaluate(axe.source);
  const found = await page.evaluate(() => globalThis.axe.run(document));
  const said = found.violations.map(({ id, impact, nodes }) => `${impact} ${id}: ${nodes.map((node) => node.html).join(" ")}`);
  console.log(`axe-core ${axe.version}, ${scheme}: ${found.passes.length} rules pass, ${said.length} violations`);
  assert.deepEqual(said, []);
}

const browser = await puppeteer.launch({ executablePath: browserPath, args: ["--no-sandbox", "--disable-gpu"] });
try {
  const page = await browser.newPage();
  await page.setViewport({ width: 1280, height: 900 });
  const [elsewhere, complaints] = [[], []];
  page.on("request", (request) => request.url().startsWith(address) || request.url().startsWith("data:") || elsewhere.push(request.url()));
  page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(String(error)));
  const policy = (await page.goto(address)).headers()["content-security-policy"] ?? "";
  assert.match(policy, /default-src 'none'/);
  assert.doesNotMatch(policy, /unsafe/);
  await until(page, () => !document.querySelector("#door").hidden);
  assert.equal(await page.$eval("#main", (main) => main.hidden), true, "nothing is shown without the token");
  for (const word of ["not-the-token", token]) {
    await until(page, () => !document.querySelector("#door").hidden && document.activeElement.id === "token");
    await page.keyboard.type(word);
    await page.keyboard.press("Enter");
    if (word !== token) await until(page, () => document.querySelector("#refused").textContent !== "");
  }
  complaints.length = 0;
  await until(page, () => document.querySelectorAll("#hosts tr").length === 4);
  await until(page, () => document.querySelector("#state").textContent === "4 of 4 hosts ready");
  assert.equal(await page.$eval("#topology", (svg) => svg.querySelectorAll("g").length), 5, "a supervisor and four hosts");

  const story = readFileSync(new URL("../../examples/harbour.txt", import.meta.url), "utf8");
  const rest = story.split("\n").filter((line) => !line.includes("magic")).join("\n");
  await page.$eval("#document", (area, value) => { area.value = value; }, `${story}\n${`${rest}\n`.repeat(6)}`);
  await page.focus("#question");
  await page.keyboard.type("What is the special magic number for harbour-lantern?");
  // From the question to the button by keyboard alone.
  for (const id of ["method", "most", "go"]) {
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.id), id);
  }
  await page.evaluate(() => {
    globalThis.shares = [];
    globalThis.lengths = [];
    new MutationObserver(() => {
      const bars = [...document.querySelectorAll("#progress progress")];
      if (bars.length) globalThis.shares.push(bars.reduce((sum, bar) => sum + bar.value, 0));
    }).observe(document.querySelector("#progress"), { childList: true });
    const answer = document.querySelector("#answer");
    new MutationObserver(() => globalThis.lengths.push(answer.textContent.length)).observe(answer, { childList: true });
  });
  await page.keyboard.press("Enter");
  await until(page, () => document.querySelectorAll("#progress progress").length > 0);
  await until(page, () => document.querySelectorAll("#hosts progress").length > 0 || document.querySelector("#phase").textContent.startsWith("succeeded"));
  if (picture) {
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "light" }]);
    await page.screenshot({ path: picture, fullPage: true });
  }
  await until(page, () => document.querySelector("#phase").textContent.startsWith("succeeded"));
  const [shares, lengths] = await page.evaluate(() => [globalThis.shares, globalThis.lengths]);
  assert.ok(new Set(shares).size > 1, `progress moved: ${shares}`);
  assert.ok(new Set(lengths.filter((length) => length > 0)).size > 2, `the answer streamed in: ${lengths}`);
  const [job] = await (await fetch(`${address}api/v1/jobs?limit=1`, { headers: { authorization: `Bearer ${token}` } })).json();
  assert.equal(await text(page, "#answer"), job.text);
  await until(page, () => /succeeded/.test(document.querySelector("#jobs").textContent));
  await until(page, () => /job .* succeeded/.test(document.querySelector("#events").textContent));
  console.log(`progress in ${new Set(shares).size} steps, the answer in ${new Set(lengths).size}: ${await text(page, "#answer")}`);

  // What a document says is text, whatever it looks like.
  await page.$eval("#question", (area) => { area.value = ""; });
  await page.type("#question", "<img src=x onerror=alert(1)>");
  await page.click("#go");
  await until(page, () => /succeeded|failed/.test(document.querySelector("#phase").textContent));
  assert.equal(await page.$("main img"), null);
  assert.equal(await page.$eval("#note", (note) => note.hidden), false, "what the embedded model knows is said beside its answer");
  assert.deepEqual(complaints, []);
  assert.deepEqual(elsewhere, [], "nothing from anywhere else");

  // The page's policy would keep axe out of it too.
  await page.setBypassCSP(true);
  await page.reload();
  await until(page, () => document.querySelectorAll("#hosts tr").length === 4);
  await violations(page, "light");
  await violations(page, "dark");
  // A telephone: nothing is wider than the page, and all that is to be pressed can be.
  await page.setViewport({ width: 390, height: 844, isMobile: true });
  const wide = await page.evaluate(() => [...document.querySelectorAll("body, header, section, form, svg, button, textarea, select")]
    .filter((element) => element.getBoundingClientRect().right > 390.5)
    .map((element) => `${element.tagName} ${element.id} ${element.getBoundingClientRect().right}`));
  assert.deepEqual(wide, [], "nothing is wider than 390 pixels");
  assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 390, "the page does not scroll sideways");
  if (picture) await page.screenshot({ path: picture.replace(/\.png$/, "-390.png"), fullPage: true });
  await page.setViewport({ width: 1280, height: 900 });
  await page.evaluate(() => sessionStorage.clear());
  await page.reload();
  await until(page, () => !document.querySelector("#door").hidden);
  await violations(page, "light");
} catch (error) {
  const [page] = (await browser.pages()).slice(-1);
  console.log(await page?.evaluate(() => document.body.innerText).catch(() => "no page"));
  throw error;
} finally {
  await browser.close();
}
