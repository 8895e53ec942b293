//! A whole conversation as a chat template renders it, out of pieces that it was asked for with stand-ins. Renders nothing itself.

use serde::{Deserialize, Serialize};

use super::around::Around;
use super::{TemplateRefusal, Written};

/// Whose message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Speaker {
    /// Whoever set the model up.
    System,
    /// Who asks.
    User,
    /// The model.
    Assistant,
}

impl Speaker {
    /// As templates call it.
    pub(super) fn role(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Whose.
    pub speaker: Speaker,
    /// What it says.
    pub text: String,
}

/// A conversation as it is rendered: three texts that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// Up to the last message.
    pub head: Written,
    /// The last message.
    pub last: String,
    /// Behind it, to where the answer begins.
    pub tail: String,
}

/// What a template puts around messages and between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    user: Around,
    system: Result<Lead, TemplateRefusal>,
    reply: Result<Reply, TemplateRefusal>,
}

/// A system message before the first of the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Lead {
    around: Around,
    to_user: String,
}

/// An answer between two messages of the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Reply {
    around: Around,
    from_user: String,
    to_user: String,
}

type Rendered = Result<String, TemplateRefusal>;

impl Frame {
    /// Asks `render` what becomes of conversations; `template` is the text it renders by.
    pub(super) fn derive(
        template: &str,
        render: impl Fn(&[(Speaker, &str)]) -> Rendered,
    ) -> Result<Self, TemplateRefusal> {
        use Speaker::{Assistant, System, User};
        let user = Around::derive(template, |message| render(&[(User, message)]))?;
        let other = stand_in(template);
        let lead = Around::derive(template, |message| render(&[(System, message), (User, &other)]));
        let system = lead.and_then(|around| {
            let to_user = joint(&around, (&user, &other))?;
            Ok(Lead { to_user, around })
        });
        let reply = Around::derive(template, |message| render(&[(User, &other), (Assistant, message), (User, &other)]));
        let reply = reply.and_then(|around| {
            let to_user = joint(&around, (&user, &other))?;
            let begins = [&user.before, other.as_str()].concat();
            let from_user = around.before.strip_prefix(&begins).ok_or_else(uneven)?.to_owned();
            Ok(Reply { from_user, to_user, around })
        });
        let mut frame = Self { user, system, reply };
        if let Err(refusal) = frame.check(&other, render) {
            frame.reply = Err(refusal);
        }
        Ok(frame)
    }

    /// Whether conversations are what their pieces say.
    fn check(&self, other: &str, render: impl Fn(&[(Speaker, &str)]) -> Rendered) -> Result<(), TemplateRefusal> {
        use Speaker::{Assistant, System, User};
        let speakers = [System, User, Assistant, User, Assistant, User];
        let texts: Vec<String> = (0..speakers.len()).map(|at| format!(" \n{other}{at}\n ")).collect();
        let turns: Vec<Turn> =
            speakers.into_iter().zip(&texts).map(|(speaker, text)| Turn { speaker, text: text.clone() }).collect();
        let asked: Vec<(Speaker, &str)> = turns.iter().map(|turn| (turn.speaker, turn.text.as_str())).collect();
        for from in if self.system.is_ok() { 0..2 } else { 1..2 } {
            let Conversation { head, last, tail } = self.conversation(&turns[from..], "")?;
            if render(&asked[from..])? != [head.text(), &last, &tail].concat() {
                return Err(uneven());
            }
        }
        Ok(())
    }

    /// The context with what stands before it, and the query with what stands behind it, as one message.
    pub(super) fn split(&self, context: &str, query: &str) -> Result<(Written, Written), TemplateRefusal> {
        self.user.split(context, query)
    }

    /// A conversation; `separator` stands where the template writes nothing between two messages.
    pub(super) fn conversation(&self, turns: &[Turn], separator: &str) -> Result<Conversation, TemplateRefusal> {
        let (mut head, mut before) = (Written::default(), None);
        let Some((last, earlier)) = turns.split_last().filter(|(last, _)| last.speaker == Speaker::User) else {
            return Err(TemplateRefusal::order());
        };
        for turn in earlier {
            head.push(self.joint(before, turn.speaker, separator)?);
            head.push_message(self.around(turn.speaker)?.kept(&turn.text)?);
            before = Some(turn.speaker);
        }
        head.push(self.joint(before, last.speaker, separator)?);
        let last = self.user.kept(&last.text)?.to_owned();
        Ok(Conversation { head, last, tail: self.user.after.clone() })
    }

    fn around(&self, speaker: Speaker) -> Result<&Around, TemplateRefusal> {
        match speaker {
            Speaker::System => self.lead().map(|lead| &lead.around),
            Speaker::User => Ok(&self.user),
            Speaker::Assistant => self.reply().map(|reply| &reply.around),
        }
    }

    /// What stands between an answer and the next message of the user.
    pub(super) fn next_turn(&self) -> Result<&str, TemplateRefusal> {
        Ok(&self.reply()?.to_user)
    }

    /// What stands before a message.
    fn joint<'a>(
        &'a self,
        before: Option<Speaker>,
        speaker: Speaker,
        separator: &'a str,
    ) -> Result<&'a str, TemplateRefusal> {
        use Speaker::{Assistant, System, User};
        let joint = match (before, speaker) {
            (None, System) => return Ok(&self.lead()?.around.before),
            (None, User) => return Ok(&self.user.before),
            (Some(System), User) => &self.lead()?.to_user,
            (Some(User), Assistant) => &self.reply()?.from_user,
            (Some(Assistant), User) => &self.reply()?.to_user,
            _ => return Err(TemplateRefusal::order()),
        };
        Ok(if joint.is_empty() { separator } else { joint })
    }

    fn lead(&self) -> Result<&Lead, TemplateRefusal> {
        self.system.as_ref().map_err(Clone::clone)
    }

    fn reply(&self) -> Result<&Reply, TemplateRefusal> {
        self.reply.as_ref().map_err(Clone::clone)
    }
}

/// What stands between a message and the user's last, which is `other`.
fn joint(around: &Around, (user, other): (&Around, &str)) -> Rendered {
    let ends = [other, &user.after].concat();
    around.after.strip_suffix(&ends).map(str::to_owned).ok_or_else(uneven)
}

fn uneven() -> TemplateRefusal {
    TemplateRefusal::Unfit(
        "it writes the messages of a longer conversation otherwise than those of a short one".to_owned(),
    )
}

/// Text that the template does not name and that no other stand-in has.
fn stand_in(template: &str) -> String {
    let mut text = String::from('\u{f8fe}');
    while template.contains(&text) {
        text.push('\u{f8fe}');
    }
    text
}
