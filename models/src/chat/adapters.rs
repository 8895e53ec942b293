//! Pieces of conversations for whoever tokenises context and question apart.

use super::{ChatTemplate, RenderOptions, Speaker, TemplateDate, TemplateRefusal, Turn, Written};
use crate::ModelError;

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

impl ChatTemplate {
    /// The context, and the query with what stands around it.
    pub fn split(&self, context: &str, query: &str, date: TemplateDate) -> Result<(Written, Written), ModelError> {
        if !self.is_chat() {
            return Ok((self.document(context), Written::message(query)));
        }
        let turn = Turn { speaker: Speaker::User, text: format!("{context}{query}") };
        self.cut(&[turn], RenderOptions::on(date).with_question(0, context.len()))
    }

    /// A conversation whose last message is the query.
    pub fn conversation(
        &self,
        turns: &[Turn],
        separator: &str,
        options: RenderOptions,
    ) -> Result<Conversation, ModelError> {
        let order = || TemplateRefusal::Unfit("the conversation has no message".to_owned());
        let (last, earlier) = turns.split_last().ok_or_else(order)?;
        if !self.is_chat() {
            let mut head = Written::from(self.bos.clone());
            for turn in earlier {
                head.push_message(&turn.text);
                head.push(separator);
            }
            return Ok(Conversation { head, last: last.text.clone(), tail: String::new() });
        }
        let (head, rest) = self.cut(turns, options.with_question(earlier.len(), 0))?;
        let kept = [last.text.as_str(), last.text.trim()].into_iter().find(|text| rest.text().starts_with(text));
        let kept = kept.ok_or_else(|| TemplateRefusal::Unfit("it changes the last message".to_owned()))?.to_owned();
        Ok(Conversation { head, tail: rest.text()[kept.len()..].to_owned(), last: kept })
    }

    fn cut(&self, turns: &[Turn], options: RenderOptions) -> Result<(Written, Written), ModelError> {
        let rendered = self.render(turns, &options)?;
        let mut context = rendered.written;
        let query = context.split_off(rendered.question_at.unwrap_or(0));
        Ok((context, query))
    }

    /// What stands between an answer and the next message of the user; nothing without a template.
    pub fn next_turn(&self) -> Result<String, ModelError> {
        if !self.is_chat() {
            return Ok(String::new());
        }
        let [question, answer, next] = ["\u{e000}", "\u{e001}", "\u{e002}"];
        let turn = |speaker, text: &str| Turn { speaker, text: text.to_owned() };
        let turns = [turn(Speaker::User, question), turn(Speaker::Assistant, answer), turn(Speaker::User, next)];
        let rendered = self.render(&turns, &RenderOptions::on(TemplateDate::default()))?;
        let between = rendered.written.text().split_once(answer).and_then(|(_, rest)| rest.split_once(next));
        let unfit = || TemplateRefusal::Unfit("it writes no answer".to_owned());
        Ok(between.ok_or_else(unfit)?.0.to_owned())
    }

    /// What stands before every text.
    pub fn bos(&self) -> &str {
        &self.bos
    }

    /// A context behind what stands before every text.
    pub fn document(&self, context: &str) -> Written {
        let mut document = Written::from(self.bos.clone());
        document.push_message(context);
        document
    }
}
