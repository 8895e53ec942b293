//! Questions about documents among others (RULER's qa_1 and qa_2), from the user's SQuAD or HotpotQA file.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde::Deserialize;

use super::{
    EvalError, EvalRecord, read_haystack,
    tasks::{
        draft::Draft,
        task::{Recipe, sized, stream},
    },
};

const INSTRUCTION: &str =
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.";

/// Documents and questions about them.
#[derive(Debug)]
pub struct Corpus {
    task: &'static str,
    documents: Arc<Vec<String>>,
    questions: Vec<DocumentQuestion>,
}

#[derive(Debug)]
struct DocumentQuestion {
    question: String,
    answers: Vec<String>,
    /// Documents that hold the answer.
    gold: Vec<usize>,
    /// Documents that look like them; they come before all others.
    near: Vec<usize>,
}

#[derive(Deserialize)]
struct Squad {
    data: Vec<Article>,
}

#[derive(Deserialize)]
struct Article {
    paragraphs: Vec<Paragraph>,
}

#[derive(Deserialize)]
struct Paragraph {
    context: String,
    qas: Vec<SquadQuestion>,
}

#[derive(Deserialize)]
struct SquadQuestion {
    question: String,
    #[serde(default)]
    is_impossible: bool,
    answers: Vec<SquadAnswer>,
}

#[derive(Deserialize)]
struct SquadAnswer {
    text: String,
}

#[derive(Deserialize)]
struct HotpotQuestion {
    question: String,
    answer: String,
    /// Title and sentences.
    context: Vec<(String, Vec<String>)>,
}

impl Corpus {
    /// RULER's qa_1: SQuAD's JSON, 1.1 or 2.0; questions without an answer are left out.
    ///
    /// # Errors
    /// [`EvalError::Read`], [`EvalError::Data`].
    pub fn squad(path: &Path) -> Result<Self, EvalError> {
        let squad: Squad = parsed(path, "SQuAD's JSON")?;
        let (mut documents, mut questions) = (Vec::new(), Vec::new());
        for article in squad.data {
            let first = documents.len();
            let all = first..first + article.paragraphs.len();
            for paragraph in article.paragraphs {
                let at = documents.len();
                documents.push(paragraph.context);
                for asked in paragraph.qas.into_iter().filter(|asked| !asked.is_impossible && !asked.answers.is_empty())
                {
                    let answers = asked.answers.into_iter().map(|answer| answer.text).collect();
                    let near = all.clone().filter(|other| *other != at).collect();
                    questions.push(DocumentQuestion { question: asked.question, answers, gold: vec![at], near });
                }
            }
        }
        Self { task: "qa_1", documents: Arc::new(documents), questions }.filled(path, "SQuAD's JSON")
    }

    /// RULER's qa_2: HotpotQA's JSON of the distractor setting.
    ///
    /// # Errors
    /// [`EvalError::Read`], [`EvalError::Data`].
    pub fn hotpotqa(path: &Path) -> Result<Self, EvalError> {
        let asked: Vec<HotpotQuestion> = parsed(path, "HotpotQA's JSON")?;
        let (mut documents, mut questions) = (Vec::new(), Vec::new());
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
        for HotpotQuestion { question, answer, context } in asked {
            let mut gold = Vec::new();
            for (title, sentences) in context {
                let document = format!("{title}\n{}", sentences.concat());
                let at = *known.entry(document).or_insert_with_key(|document| {
                    documents.push(document.clone());
                    documents.len() - 1
                });
                gold.push(at);
            }
            questions.push(DocumentQuestion { question, answers: vec![answer], gold, near: Vec::new() });
        }
        Self { task: "qa_2", documents: Arc::new(documents), questions }.filled(path, "HotpotQA's JSON")
    }

    /// `qa_1` or `qa_2`.
    pub fn task(&self) -> &'static str {
        self.task
    }

    /// A record of a question that the recipe's seed chooses, and the answers that will do.
    ///
    /// # Errors
    /// [`EvalError::TooFewTokens`].
    pub fn make(
        &self,
        recipe: &Recipe<'_>,
        count: &dyn Fn(&str) -> usize,
    ) -> Result<(EvalRecord, Vec<String>), EvalError> {
        let mut rng = StdRng::seed_from_u64(recipe.seed ^ stream(self.task));
        let asked = &self.questions[rng.random_range(0..self.questions.len())];
        let record = sized(self.task, self.draft(asked, &mut rng), recipe, count)?;
        Ok((record, asked.answers.clone()))
    }

    /// A unit is one document more than the gold ones, the first unit none; near ones come first.
    fn draft(&self, asked: &DocumentQuestion, rng: &mut StdRng) -> Draft {
        let mut near = asked.near.clone();
        near.shuffle(rng);
        let mut others: Vec<usize> =
            (0..self.documents.len()).filter(|at| !asked.gold.contains(at) && !asked.near.contains(at)).collect();
        others.shuffle(rng);
        let pool = [near, others].concat();
        let (gold, documents) = (asked.gold.clone(), self.documents.clone());
        let seed: u64 = rng.random();
        let context = move |units: usize| {
            // A data set that is too small starts over.
            let more = pool.iter().cycle().take(units - 1);
            let mut shown: Vec<&String> = gold.iter().chain(more).map(|at| &documents[*at]).collect();
            shown.shuffle(&mut StdRng::seed_from_u64(seed));
            let shown: Vec<String> =
                shown.iter().zip(1..).map(|(text, number)| format!("Document {number}:\n{text}")).collect();
            format!("{INSTRUCTION}\n\nThe following are given documents.\n\n{}\n\n", shown.join("\n\n"))
        };
        let answer = asked.answers[0].clone();
        Draft {
            query: format!("{INSTRUCTION}\n\nQuestion: {} Answer:", asked.question),
            answer: Box::new(move |_| answer.clone()),
            context: Box::new(context),
        }
    }

    fn filled(self, path: &Path, format: &'static str) -> Result<Self, EvalError> {
        let gold: usize = self.questions.iter().map(|asked| asked.gold.len()).max().unwrap_or(0);
        if self.questions.is_empty() || self.documents.len() <= gold {
            let reason = format!(
                "{} questions with an answer and {} documents are too few",
                self.questions.len(),
                self.documents.len()
            );
            return Err(EvalError::Data { path: path.to_owned(), format, reason });
        }
        Ok(self)
    }
}

fn parsed<T: serde::de::DeserializeOwned>(path: &Path, format: &'static str) -> Result<T, EvalError> {
    serde_json::from_str(&read_haystack(path)?).map_err(|error| EvalError::Data {
        path: path.to_owned(),
        format,
        reason: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn words(text: &str) -> usize {
        text.split_whitespace().count()
    }

    const SQUAD: &str = r#"{"version": "v2.0", "data": [
        {"title": "Rome", "paragraphs": [
            {"context": "Rome lies on the Tiber.", "qas": [
                {"id": "1", "question": "Which river?", "is_impossible": false, "answers": [{"text": "Tiber", "answer_start": 17}]},
                {"id": "2", "question": "Which lake?", "is_impossible": true, "answers": []}]},
            {"context": "Rome has seven hills.", "qas": []}]},
        {"title": "Oslo", "paragraphs": [{"context": "Oslo lies on a fjord.", "qas": []}]}]}"#;

    #[test]
    fn squad_hides_a_paragraph_among_those_of_its_article_and_others() {
        let corpus = Corpus::squad(file(SQUAD).path()).unwrap();
        let recipe = Recipe { tokens: 120, reserve: Some(10), seed: 3, text: None };
        let (record, answers) = corpus.make(&recipe, &words).unwrap();
        assert_eq!((record.task.as_str(), answers), ("qa_1", vec!["Tiber".to_owned()]));
        assert_eq!(record.input_context.matches("Rome lies on the Tiber.").count(), 1);
        assert!(record.input_context.contains("seven hills") && record.input_context.contains("Oslo"));
        let used = record.context_tokens + words(&record.input_query) + 10;
        assert!(used <= 120 && used > 110, "{used}");
        assert_eq!(corpus.make(&recipe, &words).unwrap().0, record);
        assert!(matches!(
            corpus.make(&Recipe { tokens: 30, ..recipe }, &words),
            Err(EvalError::TooFewTokens { tokens: 30, .. })
        ));
    }

    #[test]
    fn hotpotqa_shows_all_documents_of_its_question() {
        let text = r#"[{"_id": "a", "question": "Who?", "answer": "Ann", "supporting_facts": [["A", 0]],
            "context": [["A", ["Ann sings. ", "She does."]], ["B", ["Bob reads."]]]},
            {"_id": "b", "question": "What?", "answer": "tea", "context": [["C", ["Cleo drinks tea."]]]}]"#;
        let corpus = Corpus::hotpotqa(file(text).path()).unwrap();
        for seed in 0..9 {
            let recipe = Recipe { tokens: 90, reserve: None, seed, text: None };
            let (record, answers) = corpus.make(&recipe, &words).unwrap();
            let gold: &[&str] = if answers == ["Ann"] { &["A\nAnn sings. She does.", "B\nBob"] } else { &["C\nCleo"] };
            assert!(gold.iter().all(|text| record.input_context.contains(text)), "{}", record.input_context);
        }
    }

    #[test]
    fn other_files_are_refused() {
        let stated = |error: EvalError| error.to_string();
        assert!(stated(Corpus::squad(file("[]").path()).unwrap_err()).contains("is not SQuAD's JSON: "));
        assert!(stated(Corpus::hotpotqa(file("[]").path()).unwrap_err()).contains("0 questions with an answer"));
    }
}
