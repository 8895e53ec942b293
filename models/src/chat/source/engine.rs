//! The interpreter of one chat template: what transformers gives it, within limits. Marks nothing.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind};

use super::{python, subject::TemplateInput};
use crate::chat::{Ending, RenderOptions, TemplateDate, TemplateRefusal};

/// Longest text of a template.
pub const LONGEST_TEMPLATE: usize = 1 << 20;
/// Instructions of one rendering, and for each message more; templates of published models take fewer than 2,000, and 300 a message.
const FUEL: u64 = 50_000;
const FUEL_A_MESSAGE: u64 = 5_000;
/// Bytes that a rendering may add to the messages, and for each message more.
const MOST_ADDED: usize = 1 << 20;
const MOST_ADDED_A_MESSAGE: usize = 4096;
/// Calls within calls.
const DEEPEST_CALLS: usize = 64;
/// The name that the template goes by.
const TEMPLATE_NAME: &str = "chat_template";

/// A template that was read, with its variables.
pub struct Engine {
    environment: Environment<'static>,
    variables: Vec<(String, Value)>,
    answers: bool,
    dated: Arc<AtomicBool>,
}

impl Engine {
    /// Reads the template.
    pub fn new(
        text: &str,
        variables: &BTreeMap<String, String>,
        options: &RenderOptions,
    ) -> Result<Self, TemplateRefusal> {
        if text.len() > LONGEST_TEMPLATE {
            let got = text.len();
            return Err(TemplateRefusal::Limit(format!("it is {got} bytes long, expected at most {LONGEST_TEMPLATE}")));
        }
        let dated = Arc::new(AtomicBool::new(false));
        let mut environment = environment((options.date, dated.clone())).map_err(|error| refusal(error, 0))?;
        environment.add_template_owned(TEMPLATE_NAME, python::text(text)).map_err(|error| refusal(error, 0))?;
        let variables = variables.iter().map(|(name, text)| (name.clone(), Value::from(text.as_str()))).collect();
        Ok(Self { environment, variables, answers: options.ending == Ending::Answer, dated })
    }

    /// The template has asked for the date.
    pub fn dated(&self) -> bool {
        self.dated.load(Ordering::Relaxed)
    }

    /// The conversation as the template writes it.
    pub fn write(&self, input: &TemplateInput) -> Result<String, TemplateRefusal> {
        let mut text = Vec::new();
        self.write_to(input, &mut text)?;
        String::from_utf8(text).map_err(|_| TemplateRefusal::Unfit("it writes no UTF-8".to_owned()))
    }

    /// [`Engine::write`] to a writer.
    pub fn write_to(&self, input: &TemplateInput, to: impl io::Write) -> Result<(), TemplateRefusal> {
        let (count, bytes) = (input.count, input.bytes);
        let most = MOST_ADDED + MOST_ADDED_A_MESSAGE * count;
        let own = [
            ("messages", input.messages.clone()),
            // Where none are given, transformers writes none.
            ("tools", input.tools.clone()),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(self.answers)),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
        let asked = input.variables.iter().cloned();
        let context = Value::from_pairs(asked.chain(self.variables.iter().cloned()).chain(own));
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(FUEL + FUEL_A_MESSAGE * count as u64));
        let template = environment.get_template(TEMPLATE_NAME).map_err(|error| refusal(error, count))?;
        let mut bounded = Bounded { to, left: most + bytes, full: false };
        let ended = template.render_captured_to(context, &mut bounded).map(drop);
        if bounded.full {
            return Err(TemplateRefusal::Limit(format!("it adds more than {most} bytes to {count} messages")));
        }
        ended.map_err(|error| refusal(error, count))
    }
}

fn environment((date, dated): (TemplateDate, Arc<AtomicBool>)) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_recursion_limit(DEEPEST_CALLS);
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.add_function("raise_exception", |message: Option<&Value>, names: Kwargs| -> Result<Value, Error> {
        let message = message.cloned().map_or_else(|| names.get::<Value>("message"), Ok)?;
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message.to_string())))
    });
    environment.add_function("strftime_now", move |format: Option<&str>, names: Kwargs| -> Result<String, Error> {
        dated.store(true, Ordering::Relaxed);
        let format = format.map_or_else(|| names.get::<String>("format"), |format| Ok(format.to_owned()))?;
        Ok(date.strftime(&format))
    });
    python::teach(&mut environment);
    Ok(environment)
}

/// What a template says that refuses a conversation.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn refusal(error: Error, messages: usize) -> TemplateRefusal {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(error) = cause {
        if let Some(Raised(message)) = error.downcast_ref() {
            return TemplateRefusal::Raised(message.clone());
        }
        cause = error.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => {
            let fuel = FUEL + FUEL_A_MESSAGE * messages as u64;
            TemplateRefusal::Limit(format!("it takes more than {fuel} instructions for {messages} messages"))
        }
        _ => TemplateRefusal::Unfit(error.to_string()),
    }
}

/// Takes so many bytes and no more.
struct Bounded<W> {
    to: W,
    left: usize,
    full: bool,
}

impl<W: io::Write> io::Write for Bounded<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.left.checked_sub(bytes.len()) {
            Some(left) => self.left = left,
            None => {
                self.full = true;
                return Err(io::ErrorKind::FileTooLarge.into());
            }
        }
        self.to.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
