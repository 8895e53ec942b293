//! LongBench's files: context, input, answers and the data set's name, with its prompts, lengths and metrics.
//!
//! Chinese answers are compared by characters; the benchmark cuts them into words with jieba.

use serde::Deserialize;

use super::{
    published_question::{BENCHMARK_ANSWER_TOKENS, PublishedQuestion},
    template::Template,
};
use crate::eval::Metric;

/// A line of a data set.
#[derive(Deserialize)]
pub(super) struct LongBenchLine {
    context: String,
    #[serde(default)]
    input: String,
    answers: Vec<String>,
    dataset: Option<String>,
    all_classes: Option<Vec<String>>,
}

/// How a data set is asked.
struct Set {
    name: &'static str,
    prompt: Template,
    tokens: usize,
    metric: fn(&[String]) -> Metric,
    /// Whether as a message: what goes on after examples is asked as it stands.
    chat: bool,
}

/// What a data set is asked with that the benchmark does not have.
const OTHER_SET: Set = Set {
    name: "",
    prompt: Template("{context}\n\n{input}"),
    tokens: BENCHMARK_ANSWER_TOKENS,
    metric: |_| Metric::F1,
    chat: true,
};

pub(super) fn question(line: LongBenchLine, file: &str) -> Result<PublishedQuestion, String> {
    let LongBenchLine { context, input, answers, dataset, all_classes } = line;
    let task = dataset.as_deref().unwrap_or(file);
    // LongBench-E's files are named so.
    let name = task.strip_suffix("_e").unwrap_or(task);
    let set = SETS.iter().find(|set| set.name == name).unwrap_or(&OTHER_SET);
    let mut record = set.prompt.record(task, &context, &[("input", &input)]);
    record.chat_template = set.chat;
    record.answer = answers.join(", ");
    let metric = (set.metric)(&all_classes.unwrap_or_default());
    Ok(PublishedQuestion { suite: "longbench", record, gold: answers, metric, max_tokens: set.tokens })
}

fn first_line(metric: Metric) -> Metric {
    Metric::FirstLine(Box::new(metric))
}

const PASSAGES: Template = Template(
    "Answer the question based on the given passages. Only give me the answer and do not output any other words.\n\nThe \
     following are given passages.\n{context}\n\nAnswer the question based on the given passages. Only give me the \
     answer and do not output any other words.\n\nQuestion: {input}\nAnswer:",
);

const SETS: &[Set] = &[
    Set {
        name: "narrativeqa",
        prompt: Template(
            "You are given a story, which can be either a novel or a movie script, and a question. Answer the question as \
             concisely as you can, using a single phrase if possible. Do not provide any explanation.\n\nStory: {context}\n\n\
             Now, answer the question based on the story as concisely as you can, using a single phrase if possible. Do not \
             provide any explanation.\n\nQuestion: {input}\n\nAnswer:",
        ),
        tokens: 128,
        ..OTHER_SET
    },
    Set {
        name: "qasper",
        prompt: Template(
            "You are given a scientific article and a question. Answer the question as concisely as you can, using a single \
             phrase or sentence if possible. If the question cannot be answered based on the information in the article, \
             write \"unanswerable\". If the question is a yes/no question, answer \"yes\", \"no\", or \"unanswerable\". Do not \
             provide any explanation.\n\nArticle: {context}\n\n Answer the question based on the above article as concisely \
             as you can, using a single phrase or sentence if possible. If the question cannot be answered based on the \
             information in the article, write \"unanswerable\". If the question is a yes/no question, answer \"yes\", \"no\", \
             or \"unanswerable\". Do not provide any explanation.\n\nQuestion: {input}\n\nAnswer:",
        ),
        tokens: 128,
        ..OTHER_SET
    },
    Set {
        name: "multifieldqa_en",
        prompt: Template(
            "Read the following text and answer briefly.\n\n{context}\n\nNow, answer the following question based on the \
             above text, only give me the answer and do not output any other words.\n\nQuestion: {input}\nAnswer:",
        ),
        tokens: 64,
        ..OTHER_SET
    },
    Set {
        name: "multifieldqa_zh",
        prompt: Template(
            "阅读以下文字并用中文简短回答：\n\n{context}\n\n现在请基于上面的文章回答下面的问题，只告诉我答案，不要输出任何其他字词。\
             \n\n问题：{input}\n回答：",
        ),
        tokens: 64,
        metric: |_| Metric::F1OfCharacters,
        ..OTHER_SET
    },
    Set { name: "hotpotqa", prompt: PASSAGES, tokens: 32, ..OTHER_SET },
    Set { name: "2wikimqa", prompt: PASSAGES, tokens: 32, ..OTHER_SET },
    Set { name: "musique", prompt: PASSAGES, tokens: 32, ..OTHER_SET },
    Set {
        name: "dureader",
        prompt: Template(
            "请基于给定的文章回答下述问题。\n\n文章：{context}\n\n请基于上述文章回答下面的问题。\n\n问题：{input}\n回答：",
        ),
        tokens: 128,
        metric: |_| Metric::RougeOfCharacters,
        ..OTHER_SET
    },
    Set {
        name: "gov_report",
        prompt: Template(
            "You are given a report by a government agency. Write a one-page summary of the report.\n\nReport:\n{context}\n\n\
             Now, write a one-page summary of the report.\n\nSummary:",
        ),
        tokens: 512,
        metric: |_| Metric::Rouge,
        ..OTHER_SET
    },
    Set {
        name: "qmsum",
        prompt: Template(
            "You are given a meeting transcript and a query containing a question or instruction. Answer the query in one or \
             more sentences.\n\nTranscript:\n{context}\n\nNow, answer the query based on the above meeting transcript in one \
             or more sentences.\n\nQuery: {input}\nAnswer:",
        ),
        tokens: 512,
        metric: |_| Metric::Rouge,
        ..OTHER_SET
    },
    Set {
        name: "multi_news",
        prompt: Template(
            "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n{context}\n\nNow, write a \
             one-page summary of all the news.\n\nSummary:",
        ),
        tokens: 512,
        metric: |_| Metric::Rouge,
        ..OTHER_SET
    },
    Set {
        name: "vcsum",
        prompt: Template(
            "下面有一段会议记录，请你阅读后，写一段总结，总结会议的内容。\n会议记录：\n{context}\n\n会议总结：",
        ),
        tokens: 512,
        metric: |_| Metric::RougeOfCharacters,
        ..OTHER_SET
    },
    Set {
        name: "trec",
        prompt: Template(
            "Please determine the type of the question below. Here are some examples of questions.\n\n{context}\n{input}",
        ),
        tokens: 64,
        metric: |classes| first_line(Metric::Classes(classes.into())),
        chat: false,
    },
    Set {
        name: "triviaqa",
        prompt: Template(
            "Answer the question based on the given passage. Only give me the answer and do not output any other words. The \
             following are some examples.\n\n{context}\n\n{input}",
        ),
        tokens: 32,
        metric: |_| first_line(Metric::F1),
        chat: false,
    },
    Set {
        name: "samsum",
        prompt: Template(
            "Summarize the dialogue into a few short sentences. The following are some examples.\n\n{context}\n\n{input}",
        ),
        tokens: 128,
        metric: |_| first_line(Metric::Rouge),
        chat: false,
    },
    Set {
        name: "lsht",
        prompt: Template("请判断给定新闻的类别，下面是一些例子。\n\n{context}\n{input}"),
        tokens: 64,
        metric: |classes| first_line(Metric::Classes(classes.into())),
        chat: false,
    },
    Set {
        name: "passage_count",
        prompt: Template(
            "There are some paragraphs below sourced from Wikipedia. Some of them may be duplicates. Please carefully read \
             these paragraphs and determine how many unique paragraphs there are after removing duplicates. In other words, \
             how many non-repeating paragraphs are there in total?\n\n{context}\n\nPlease enter the final count of unique \
             paragraphs after removing duplicates. The output format should only contain the number, such as 1, 2, 3, and so \
             on.\n\nThe final answer is: ",
        ),
        tokens: 32,
        metric: |_| Metric::Count,
        ..OTHER_SET
    },
    Set {
        name: "passage_retrieval_en",
        prompt: Template(
            "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine which paragraph the abstract is \
             from.\n\n{context}\n\nThe following is an abstract.\n\n{input}\n\nPlease enter the number of the paragraph that \
             the abstract is from. The answer format must be like \"Paragraph 1\", \"Paragraph 2\", etc.\n\nThe answer is: ",
        ),
        tokens: 32,
        metric: |_| Metric::Count,
        ..OTHER_SET
    },
    Set {
        name: "passage_retrieval_zh",
        prompt: Template(
            "以下是若干段落文字，以及其中一个段落的摘要。请确定给定的摘要出自哪一段。\n\n{context}\n\n下面是一个摘要\n\n{input}\n\n\
             请输入摘要所属段落的编号。答案格式必须是\"段落1\"，\"段落2\"等格式\n\n答案是：",
        ),
        tokens: 32,
        metric: |_| Metric::Count,
        ..OTHER_SET
    },
    Set {
        name: "lcc",
        prompt: Template("Please complete the code given below. \n{context}Next line of code:\n"),
        tokens: 64,
        metric: |_| Metric::Code,
        chat: false,
    },
    Set {
        name: "repobench-p",
        prompt: Template("Please complete the code given below. \n{context}{input}Next line of code:\n"),
        tokens: 64,
        metric: |_| Metric::Code,
        chat: false,
    },
];
