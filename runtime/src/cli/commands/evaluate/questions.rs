//! The questions of a run: which ones, in which order, and each made when its turn comes.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use asterism_actors::{JobError, api::JobRequest, supervisor::ContextHosts};
use asterism_kernels::{DType, KvType};
use asterism_models::QuerySeparator;
use asterism_plan::{MethodConfig, methods::DenseConfig};
use ring::digest::{self, Digest};

use super::{
    arguments::{InfiniteArgs, NiahArgs, RulerArgs, RunArgs, SizeArgs, SuiteArgs},
    common::{EMBEDDED, refusal},
};
use crate::{
    cluster::{Model, size::Tokens},
    error::CliError,
    eval::{
        self, Book, Corpus, EvalError, EvalQuestion, EvalRecord, Library, Metric, PublishedQuestion, QuestionKey,
        QuestionPlace, Recipe, Scoring, Task,
    },
    globals::Globals,
    processes::checkpoint,
};

/// Most tokens of an answer of RULER's qa tasks.
const DOCUMENTS_ANSWER_TOKENS: usize = 32;

/// Counts tokens as the cluster's model does.
pub struct TokenCounter(asterism_actors::supervisor::ModelFront);

impl TokenCounter {
    /// The model of the cluster file, of this name or the first, or the embedded one.
    pub fn load(globals: &Globals, name: Option<&str>) -> Result<Self, CliError> {
        Ok(Self::with_model(globals, name)?.1)
    }

    /// The same with the model itself.
    pub fn with_model(globals: &Globals, name: Option<&str>) -> Result<(Model, Self), CliError> {
        let Some(cluster) = globals.cluster_if_any()? else {
            return Ok((EMBEDDED, Self::embedded()?));
        };
        let mut known = Vec::new();
        for model in cluster.models() {
            let front = checkpoint::model_front(model)?;
            if name.is_none_or(|name| name == front.name) {
                return Ok((model.clone(), Self(front)));
            }
            known.push(format!("'{}'", front.name));
        }
        let error = JobError::NoModel { asked: name.unwrap_or_default().to_owned(), known };
        Err(CliError::of_code(error.code(), error.to_string()))
    }

    /// The embedded model's.
    pub fn embedded() -> Result<Self, CliError> {
        Ok(Self(checkpoint::model_front(&EMBEDDED)?))
    }

    /// A record of `task` with a context of about `tokens`.
    pub fn generate(&self, task: Task, tokens: usize, seed: u64, text: Option<&str>) -> Result<EvalRecord, CliError> {
        eval::generate(task, tokens, seed, &|text| self.count(text), text).map_err(refusal)
    }

    /// As [`ModelFront::ids`](asterism_actors::supervisor::ModelFront::ids).
    pub fn ids(&self, request: JobRequest) -> Result<(Arc<[u32]>, Vec<u32>), CliError> {
        self.0.ids(request).map_err(|error| CliError::of_code(error.code(), &error))
    }

    /// Text of generated ids.
    pub fn text(&self, ids: &[u32]) -> Result<String, CliError> {
        self.0.text(ids).map_err(CliError::usage)
    }

    fn count(&self, text: &str) -> usize {
        self.0.count_tokens(text).unwrap_or(usize::MAX)
    }

    /// Tokens of a question with its answer, as they are counted here, so that it has no more than `length` where that is about as much as
    /// the model takes. A length that it does not take stays one.
    fn within(&self, length: usize) -> usize {
        let most = self.0.max_tokens;
        if length <= most { length.min(most.saturating_sub(SEAM_TOKENS)) } else { length }
    }

    /// Tokens that the chat template and BOS add to a question.
    fn overhead(&self) -> Result<usize, CliError> {
        let query_separator = Some(QuerySeparator::NONE);
        let request = JobRequest { max_tokens: 1, query_separator, ..JobRequest::new(Some("a".into()), "a".into()) };
        let planned = self.0.preview(request, &MethodConfig::Dense(DenseConfig {}), &ONE_HOST);
        let (plan, query_tokens) = planned.map_err(|error| CliError::of_code(error.code(), &error))?;
        Ok((plan.context_tokens + query_tokens).saturating_sub(2 * self.count("a")))
    }
}

/// Tokens that a template, a context and a question may have more of where they meet than each has by itself.
const SEAM_TOKENS: usize = 4;

/// Counting tokens needs no more.
const ONE_HOST: ContextHosts =
    ContextHosts { count: 1, one_device: true, kv: KvType::computed(DType::F32), speeds: None };

/// Where a question comes from.
enum Kind {
    Generated(Task),
    /// Share of the context before the needle.
    Depth(f64),
    Corpus(usize),
    Library(usize),
    Given(usize),
}

/// The questions of a run, in order: by length, then by sample, then by task.
#[derive(Default)]
pub struct Questions {
    slots: Vec<(QuestionPlace, Kind)>,
    counter: Option<(TokenCounter, usize)>,
    max_tokens: Option<usize>,
    haystack: Option<String>,
    /// The haystack's.
    prose: Option<Digest>,
    corpora: Vec<Corpus>,
    libraries: Vec<Library>,
    /// Digests of the files that the corpora or libraries are of, in their order.
    files: Vec<Digest>,
    given: Vec<PublishedQuestion>,
}

impl Questions {
    /// RULER's.
    pub fn ruler(globals: &Globals, args: &RulerArgs) -> Result<Self, CliError> {
        let mut questions = Self::sized(globals, &args.suite.size, &args.suite.run)?;
        let read = |file: &Option<PathBuf>, read: fn(&Path) -> Result<Corpus, EvalError>| {
            let with_digest = |path: &Path| Ok((read(path)?, digest_of(path)?));
            file.as_deref().map(with_digest).transpose().map_err(refusal)
        };
        let corpora = [
            ("qa_1", "--squad", read(&args.squad, Corpus::squad)?),
            ("qa_2", "--hotpotqa", read(&args.hotpotqa, Corpus::hotpotqa)?),
        ];
        let mut tasks = generated("ruler");
        let mut missing = Vec::new();
        for (task, option, corpus) in corpora {
            match corpus {
                Some((corpus, digest)) => {
                    questions.files.push(digest);
                    tasks.push((task, Kind::Corpus(questions.corpora.len())));
                    questions.corpora.push(corpus);
                }
                None => missing.push((task, option)),
            }
        }
        let tasks = chosen(globals, &args.suite.tasks, tasks, &missing)?;
        questions.fill("ruler", &args.suite.size, &tasks);
        Ok(questions)
    }

    /// BABILong's.
    pub fn babilong(globals: &Globals, args: &SuiteArgs) -> Result<Self, CliError> {
        let mut questions = Self::sized(globals, &args.size, &args.run)?;
        let tasks = chosen(globals, &args.tasks, generated("babilong"), &[])?;
        questions.fill("babilong", &args.size, &tasks);
        Ok(questions)
    }

    /// Those in natural language.
    pub fn real(globals: &Globals, args: &SuiteArgs) -> Result<Self, CliError> {
        let mut questions = Self::sized(globals, &args.size, &args.run)?;
        let tasks = chosen(globals, &args.tasks, generated("real"), &[])?;
        questions.fill("real", &args.size, &tasks);
        Ok(questions)
    }

    /// The grid's.
    pub fn niah(globals: &Globals, args: &NiahArgs) -> Result<Self, CliError> {
        let mut questions = Self::sized(globals, &args.size, &args.run)?;
        let last = f64::from(args.depths.max(2) - 1);
        let depths: Vec<Kind> = (0..args.depths).map(|depth| Kind::Depth(f64::from(depth) / last)).collect();
        questions.fill("niah", &args.size, &depths);
        Ok(questions)
    }

    /// InfiniteBench's.
    pub fn infinitebench(globals: &Globals, args: &InfiniteArgs) -> Result<Self, CliError> {
        let mut questions = Self::sized(globals, &args.suite.size, &args.suite.run)?;
        let mut tasks = generated("infinitebench");
        let mut missing = Vec::new();
        for book in Book::ALL {
            match &args.data {
                Some(folder) if book.file(folder).exists() => {
                    tasks.push((book.task(), Kind::Library(questions.libraries.len())));
                    questions.libraries.push(Library::read(book, folder).map_err(refusal)?);
                    questions.files.push(digest_of(&book.file(folder)).map_err(refusal)?);
                }
                _ => missing.push((book.task(), book.option())),
            }
        }
        let tasks = chosen(globals, &args.suite.tasks, tasks, &missing)?;
        questions.fill("infinitebench", &args.suite.size, &tasks);
        Ok(questions)
    }

    /// Those of files, as they are.
    pub fn of_files(files: &[PathBuf], limit: Option<usize>, max_tokens: Option<Tokens>) -> Result<Self, CliError> {
        let mut given = Vec::new();
        for file in files {
            given.extend(eval::read_questions(file).map_err(refusal)?);
        }
        given.truncate(limit.unwrap_or(usize::MAX));
        let place = |(sample, given): (usize, &PublishedQuestion)| {
            (QuestionPlace { suite: given.suite, length: 0, sample: sample as u64 }, Kind::Given(sample))
        };
        let slots = given.iter().enumerate().map(place).collect();
        Ok(Self { slots, given, max_tokens: max_tokens.map(|tokens| tokens.0), ..Self::default() })
    }

    /// What a table of them counts: records of this program's form say no benchmark.
    pub fn scoring(&self) -> Scoring {
        let given = |(place, _): &(QuestionPlace, Kind)| place.suite == "file";
        if self.slots.iter().all(given) { Scoring::Exact } else { Scoring::Benchmark }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Where question `index` stands among those of all runs.
    pub fn key(&self, index: usize) -> QuestionKey {
        let (QuestionPlace { suite, length, sample }, kind) = &self.slots[index];
        let task = match kind {
            Kind::Generated(task) => task.name().to_owned(),
            Kind::Depth(depth) => depth_name(*depth),
            Kind::Corpus(at) => self.corpora[*at].task().to_owned(),
            Kind::Library(at) => self.libraries[*at].book().task().to_owned(),
            Kind::Given(at) => self.given[*at].record.task.clone(),
        };
        QuestionKey { suite: (*suite).to_owned(), task, length: *length, sample: *sample, question: self.digest(index) }
    }

    /// Digest of all that question `index` is made from beside its place.
    fn digest(&self, index: usize) -> String {
        let mut context = digest::Context::new(&digest::SHA256);
        let overhead = self.counter.as_ref().map(|(_, overhead)| *overhead);
        context.update(format!("{:?} {overhead:?} ", self.max_tokens).as_bytes());
        match self.slots[index].1 {
            Kind::Generated(_) | Kind::Depth(_) => context.update(self.prose.as_ref().map_or(&[], Digest::as_ref)),
            Kind::Corpus(at) | Kind::Library(at) => context.update(self.files[at].as_ref()),
            Kind::Given(at) => {
                context.update(serde_json::to_string(&self.given[at]).expect("plain values are JSON").as_bytes());
            }
        }
        context.finish().as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Makes question `index`.
    pub fn make(&self, index: usize) -> Result<EvalQuestion, CliError> {
        let (place, kind) = &self.slots[index];
        let mut question = match (kind, &self.counter) {
            (Kind::Given(at), _) => EvalQuestion::published(*place, self.given[*at].clone()),
            (_, None) => unreachable!("questions that are made come with a counter"),
            (kind, Some((counter, overhead))) => self.made(*place, kind, counter, *overhead).map_err(refusal)?,
        };
        question.max_tokens = self.max_tokens.unwrap_or(question.max_tokens);
        question.digest = self.digest(index);
        Ok(question)
    }

    fn made(
        &self,
        place: QuestionPlace,
        kind: &Kind,
        counter: &TokenCounter,
        overhead: usize,
    ) -> Result<EvalQuestion, EvalError> {
        let count = |text: &str| counter.count(text);
        let recipe = |answer: usize| Recipe {
            tokens: counter.within(place.length),
            reserve: Some(overhead + self.max_tokens.unwrap_or(answer)),
            seed: place.sample,
            text: self.haystack.as_deref(),
        };
        match kind {
            Kind::Generated(task) => {
                let record = eval::make(*task, &recipe(task.answer_tokens()), &count)?;
                Ok(EvalQuestion::generated(place, record, *task))
            }
            Kind::Depth(depth) => {
                let task = Task::NiahSingle2;
                let record = eval::make_at_depth(*depth, &recipe(task.answer_tokens()), &count)?;
                let record = EvalRecord { task: depth_name(*depth), ..record };
                Ok(EvalQuestion::generated(place, record, task))
            }
            Kind::Corpus(at) => {
                let (record, gold) = self.corpora[*at].make(&recipe(DOCUMENTS_ANSWER_TOKENS), &count)?;
                Ok(EvalQuestion { gold, ..EvalQuestion::with(place, record, Metric::Any, DOCUMENTS_ANSWER_TOKENS) })
            }
            Kind::Library(at) => {
                let library = &self.libraries[*at];
                let (record, gold) = library.make(place.sample as usize, &recipe(Book::ANSWER_TOKENS), &count)?;
                let metric = library.book().metric();
                Ok(EvalQuestion { gold, ..EvalQuestion::with(place, record, metric, Book::ANSWER_TOKENS) })
            }
            Kind::Given(_) => unreachable!("given questions are taken as they are"),
        }
    }

    fn sized(globals: &Globals, size: &SizeArgs, run: &RunArgs) -> Result<Self, CliError> {
        let counter = TokenCounter::load(globals, run.model_name.as_deref())?;
        let overhead = counter.overhead()?;
        let haystack = size.haystack.as_ref().map(eval::read_haystack).transpose().map_err(refusal)?;
        let prose = haystack.as_ref().map(|text| digest::digest(&digest::SHA256, text.as_bytes()));
        let max_tokens = run.max_tokens.map(|tokens| tokens.0);
        Ok(Self { counter: Some((counter, overhead)), haystack, prose, max_tokens, ..Self::default() })
    }

    fn fill(&mut self, suite: &'static str, size: &SizeArgs, tasks: &[Kind]) {
        let mut lengths: Vec<usize> = size.lengths.iter().map(|length| length.0).collect();
        lengths.sort_unstable();
        lengths.dedup();
        for length in lengths {
            for sample in 0..size.samples {
                for task in tasks {
                    let (sample, kind) = match *task {
                        // Books are asked in the order of their file.
                        Kind::Library(at) if sample >= self.libraries[at].len() as u64 => continue,
                        Kind::Library(at) => (sample, Kind::Library(at)),
                        Kind::Generated(task) => (size.seed.wrapping_add(sample), Kind::Generated(task)),
                        Kind::Depth(depth) => (size.seed.wrapping_add(sample), Kind::Depth(depth)),
                        Kind::Corpus(at) => (size.seed.wrapping_add(sample), Kind::Corpus(at)),
                        Kind::Given(at) => (sample, Kind::Given(at)),
                    };
                    self.slots.push((QuestionPlace { suite, length, sample }, kind));
                }
            }
        }
    }
}

fn digest_of(path: &Path) -> Result<Digest, EvalError> {
    Ok(digest::digest(&digest::SHA256, eval::read_haystack(path)?.as_bytes()))
}

fn depth_name(depth: f64) -> String {
    format!("depth {:.0}%", 100.0 * depth)
}

fn generated(suite: &str) -> Vec<(&'static str, Kind)> {
    Task::of_suite(suite).into_iter().map(|task| (task.name(), Kind::Generated(task))).collect()
}

/// The tasks named, or all there are; `missing` are those without their data, and the option that gives it.
fn chosen(
    globals: &Globals,
    names: &[String],
    mut tasks: Vec<(&'static str, Kind)>,
    missing: &[(&'static str, &'static str)],
) -> Result<Vec<Kind>, CliError> {
    if names.is_empty() {
        for (task, option) in missing {
            globals.note(format_args!("{task} is left out: it needs {option}"));
        }
        return Ok(tasks.into_iter().map(|(_, kind)| kind).collect());
    }
    let mut kinds = Vec::new();
    let asked = |at: usize, name: &String| names[..at].contains(name);
    for (_, name) in names.iter().enumerate().filter(|(at, name)| !asked(*at, name)) {
        if let Some((task, option)) = missing.iter().find(|(task, _)| task == name) {
            return Err(CliError::usage(format!("{task} needs the benchmark's own data"))
                .hint(format!("give it with {option}, or leave {task} out of --tasks")));
        }
        let known: Vec<&'static str> = tasks.iter().map(|(task, _)| *task).collect();
        match tasks.iter().position(|(task, _)| task == name) {
            Some(at) => kinds.push(tasks.remove(at).1),
            None => return Err(refusal(EvalError::unknown_task(name, &known))),
        }
    }
    Ok(kinds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_another_when_its_file_or_its_answer_is() {
        let folder = tempfile::tempdir().unwrap();
        let asked = |lines: &[(&str, &str)], max_tokens: Option<usize>| {
            let line = |(context, query): &(&str, &str)| {
                format!("{{\"input_context\": {context:?}, \"input_query\": {query:?}, \"answer\": \"7\"}}\n")
            };
            let path = folder.path().join("asked.jsonl");
            std::fs::write(&path, lines.iter().map(line).collect::<String>()).unwrap();
            let questions = Questions::of_files(&[path], None, max_tokens.map(Tokens)).unwrap();
            let digests: Vec<_> = (0..questions.len()).map(|index| questions.key(index).question).collect();
            assert_eq!(questions.make(0).unwrap().digest, digests[0], "an answer has its question's");
            digests
        };
        let first = asked(&[("a", "b"), ("c", "d")], None);
        assert_ne!(first[0], first[1]);
        assert_eq!(asked(&[("a", "b"), ("c", "d")], None), first);
        assert_eq!(asked(&[("a", "b"), ("other", "d")], None)[0], first[0]);
        for (lines, max_tokens) in [([("other", "b")], None), ([("a", "other")], None), ([("a", "b")], Some(2))] {
            assert_ne!(asked(&lines, max_tokens)[0], first[0], "{lines:?}, {max_tokens:?}");
        }
    }
}
