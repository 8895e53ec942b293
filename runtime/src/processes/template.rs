//! A model's chat template, run by processes of their own that may take so much memory and time. Others wrote the template:
//! whatever it does ends there.
//!
//! A process stays for the renderings to come. It is told of one by a length and as many bytes of JSON, and answers alike.

pub(crate) mod message;
mod resident;

use std::{
    io::{self, Read},
    sync::{Condvar, Mutex, PoisonError},
};

use asterism_models::{ChatTurn, Render, RenderOptions, Rendered, TemplateRefusal, TemplateSource};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::error::{CliError, Exit};
pub(crate) use message::{MEMORY_A_BYTE, RENDERER_MEMORY_BYTES, VERB, write};
use resident::{RenderFailure, Resident};

/// Processes that render at a time.
const MOST_PROCESSES: usize = 2;
/// Processor time of a process for all that it renders: one that nobody waits for any more ends some day.
const MOST_SECONDS_IN_ALL: u64 = 600;
/// Longest question that is read.
const MOST_ASKED: u64 = 1 << 32;

/// Renders by this template in processes of their own, which are started when they are needed.
pub fn apart(source: TemplateSource) -> Box<dyn Render> {
    Box::new(Apart { source, processes: Mutex::default(), freed: Condvar::new() })
}

struct Apart {
    source: TemplateSource,
    processes: Mutex<Processes>,
    freed: Condvar,
}

#[derive(Default)]
struct Processes {
    idle: Vec<Resident>,
    busy: usize,
}

impl Render for Apart {
    fn render(&self, turns: &[ChatTurn], options: &RenderOptions) -> Result<Rendered, TemplateRefusal> {
        let asked = serde_json::to_vec(&(turns, options)).expect("plain values are JSON");
        let place = self.place();
        let idle = self.processes().idle.pop();
        let (process, answer) = match idle.map(|mut process| (process.ask(&asked), process)) {
            Some((Ok(answer), process)) => (process, answer),
            Some((Err(RenderFailure::Limit(limit)), _)) => return Err(TemplateRefusal::Limit(limit)),
            // One that died while nobody asked it is no fault of this conversation.
            Some((Err(RenderFailure::Otherwise(_)), _)) | None => self.anew(&asked)?,
        };
        drop(asked);
        let read = serde_json::from_slice(&answer);
        self.processes().idle.push(process);
        drop(place);
        read.map_err(|error| TemplateRefusal::Unfit(format!("its process answered something else: {error}")))?
    }
}

impl Apart {
    /// Asks a process that has just begun.
    fn anew(&self, asked: &[u8]) -> Result<(Resident, Vec<u8>), TemplateRefusal> {
        let failed = |cause: String| TemplateRefusal::Unfit(format!("its process cannot be asked: {cause}"));
        let source = serde_json::to_vec(&self.source).expect("plain values are JSON");
        let mut process = Resident::start(&source).map_err(|error| failed(error.to_string()))?;
        match process.ask(asked) {
            Ok(answer) => Ok((process, answer)),
            Err(RenderFailure::Limit(limit)) => Err(TemplateRefusal::Limit(limit)),
            Err(RenderFailure::Otherwise(cause)) => Err(failed(cause)),
        }
    }

    /// Waits until few enough are asked.
    fn place(&self) -> RenderSlot<'_> {
        let full = |processes: &mut Processes| processes.busy >= MOST_PROCESSES;
        let waited = self.freed.wait_while(self.processes(), full);
        waited.unwrap_or_else(PoisonError::into_inner).busy += 1;
        RenderSlot(self)
    }

    fn processes(&self) -> std::sync::MutexGuard<'_, Processes> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to ask a process.
struct RenderSlot<'a>(&'a Apart);

impl Drop for RenderSlot<'_> {
    fn drop(&mut self) {
        self.0.processes().busy -= 1;
        self.0.freed.notify_one();
    }
}

/// Renders what standard input asks for until it ends, within limits.
pub fn answer() -> Result<Exit, CliError> {
    let failed = |error: io::Error| CliError::unreachable(format!("the template was not asked: {error}"));
    limit(Resource::Core, 0).and_then(|()| limit(Resource::Cpu, MOST_SECONDS_IN_ALL)).map_err(failed)?;
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let Some(source) = read(&mut input).map_err(failed)? else { return Ok(Exit::Success) };
    let source: TemplateSource = serde_json::from_slice(&source).map_err(CliError::usage)?;
    while let Some(asked) = read(&mut input).map_err(failed)? {
        let (turns, options): (Vec<ChatTurn>, RenderOptions) =
            serde_json::from_slice(&asked).map_err(CliError::usage)?;
        drop(asked);
        let answer = serde_json::to_vec(&source.render(&turns, &options)).expect("plain values are JSON");
        write(&mut output, &answer).map_err(failed)?;
    }
    Ok(Exit::Success)
}

/// Reads a length and so many bytes, for which it makes room first; nothing at the end.
fn read(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 8];
    match input.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        ended => ended?,
    }
    let length = u64::from_le_bytes(length);
    if length > MOST_ASKED {
        return Err(io::Error::other(format!("asked with {length} bytes, expected at most {MOST_ASKED}")));
    }
    limit(Resource::As, RENDERER_MEMORY_BYTES + MEMORY_A_BYTE * length)?;
    let mut bytes = vec![0; length as usize];
    input.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}

fn limit(resource: Resource, most: u64) -> io::Result<()> {
    Ok(setrlimit(resource, Rlimit { current: Some(most), maximum: None })?)
}
