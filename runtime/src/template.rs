//! A model's chat template, asked what it does by a process of its own that may take so much memory and time. Others wrote the
//! template: whatever it does ends there.

use std::{
    io::{self, Read, Write},
    process::{Child, Command, Stdio},
};

use asterism_models::{Render, RenderOptions, Rendered, TemplateRefusal, TemplateSource, Turn};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::error::{CliError, Exit};

/// The hidden verb of the process that is asked.
pub const VERB: &str = "ask-template";
/// Address space of the process that is asked.
const MOST_MEMORY: u64 = 1 << 30;
/// Its processor time.
const MOST_SECONDS: u64 = 10;
/// Longest answer.
const MOST_ANSWER: u64 = 16 << 20;

/// Renders by this template in a process of its own.
pub fn apart(source: TemplateSource) -> Box<dyn Render> {
    Box::new(Apart(source))
}

struct Apart(TemplateSource);

impl Render for Apart {
    fn render(&self, turns: &[Turn], options: &RenderOptions) -> Result<Rendered, TemplateRefusal> {
        let asked = serde_json::to_vec(&(&self.0, turns, options)).expect("plain values are JSON");
        let answer = ask(&asked).map_err(|error| TemplateRefusal::Unfit(format!("it could not be asked: {error}")))?;
        serde_json::from_slice(&answer).unwrap_or_else(|_| {
            let memory = MOST_MEMORY >> 20;
            Err(TemplateRefusal::Limit(format!("it takes more than {MOST_SECONDS} s or {memory} MiB")))
        })
    }
}

fn ask(asked: &[u8]) -> io::Result<Vec<u8>> {
    let mut child = Reaped(
        Command::new(std::env::current_exe()?)
            .arg(VERB)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?,
    );
    let (stdin, stdout) = (child.0.stdin.take(), child.0.stdout.take());
    // One that died already says more by its silence.
    let _ = stdin.expect("piped").write_all(asked);
    let mut answer = Vec::new();
    stdout.expect("piped").take(MOST_ANSWER).read_to_end(&mut answer)?;
    Ok(answer)
}

/// A process that is not left behind.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Answers the question on standard input, within limits.
pub fn answer() -> Result<Exit, CliError> {
    let failed = |error: io::Error| CliError::unreachable(format!("the template was not asked: {error}"));
    for (resource, most) in [(Resource::As, MOST_MEMORY), (Resource::Cpu, MOST_SECONDS), (Resource::Core, 0)] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
            .map_err(|error| failed(error.into()))?;
    }
    let mut question = Vec::new();
    io::stdin().take(MOST_ANSWER).read_to_end(&mut question).map_err(failed)?;
    let (source, turns, options): (TemplateSource, Vec<Turn>, RenderOptions) =
        serde_json::from_slice(&question).map_err(CliError::usage)?;
    let answer = serde_json::to_vec(&source.render(&turns, &options)).expect("plain values are JSON");
    io::stdout().write_all(&answer).map_err(failed)?;
    Ok(Exit::Success)
}
