//! A conversation is read once: later turns read only what is new, and their logits are those of reading it all.

use engine::open::On;
use engine::{Ask, Context, Conversation, Error, Event, Finish, Model, OpenOptions, Request, Reread, Sampling, Turn};
use std::sync::atomic::{AtomicBool, Ordering};
use text::{ChatTemplate, GgufVocab, Tokenizer};

const VOCAB: u32 = 256;
/// Logits of the tiny models are about ±3; f32 sums in another order (rows one by one or together) move them by 1e-5.
const TOLERANCE: f32 = 1e-4;
const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant{{ '\\n' }}";
/// Drops all but the last message's words.
const FORGETFUL: &str =
    "{% for m in messages %}<|im_start|>{% if loop.last %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}";

/// Two markup tokens, the printable ASCII characters and the line break; all others are words that no merge makes, so an
/// answer's text does not give its ids back.
fn tokenizer() -> Tokenizer {
    let mut tokens: Vec<String> = vec!["<|im_start|>".into(), "<|im_end|>".into()];
    tokens.extend((33u8..127).map(|b| (b as char).to_string()));
    // Byte-level vocabularies write a space as Ġ and a line break as Ċ.
    tokens.extend(["Ġ".to_string(), "Ċ".to_string()]);
    tokens.extend((tokens.len()..VOCAB as usize).map(|i| format!("w{i}")));
    let vocab = GgufVocab {
        model: "gpt2",
        pre: Some("smollm"),
        token_types: Some((0..VOCAB as i64).map(|i| if i < 2 { 3 } else { 1 }).collect()),
        tokens: tokens.iter().map(String::as_str).collect(),
        eos: Some(1),
        ..GgufVocab::default()
    };
    Tokenizer::from_gguf(&vocab).unwrap()
}

struct Rig {
    model: Model,
    tokenizer: Tokenizer,
    conversation: Conversation,
    _dir: tempfile::TempDir,
}

fn rig(name: &str, template: &str, context: Option<u32>) -> Rig {
    let dir = testkit::materialise(name).unwrap();
    let context = context.map_or(Context::Usual, Context::Exactly);
    let how = OpenOptions { ask: Ask { context, ..Ask::default() }, on: On::Reference, ..OpenOptions::default() };
    let model = Model::open(dir.path().to_path_buf(), &how, &mut |_| {}).unwrap();
    let conversation = Conversation::new(ChatTemplate::new(template).unwrap(), None);
    Rig { model, tokenizer: tokenizer(), conversation, _dir: dir }
}

/// Greedy, with the logprobs of the whole vocabulary for every token. Markup is not generated: it would show in no text.
fn how(max_tokens: u32) -> Request {
    let logit_bias = vec![(0, -100.0), (1, -100.0)];
    let sampling = Sampling { logprobs: Some(VOCAB), logit_bias, ..Sampling::greedy() };
    Request { sampling, max_tokens: Some(max_tokens), ..Request::default() }
}

impl Rig {
    fn say(&mut self, text: &str, how: &Request) -> engine::Result<Turn> {
        self.say_until(text, how, &AtomicBool::new(false), &mut |_| {})
    }
    fn say_until(
        &mut self,
        text: &str,
        how: &Request,
        cancel: &AtomicBool,
        on: &mut dyn FnMut(Event),
    ) -> engine::Result<Turn> {
        self.conversation.say(&mut self.model.exec, &self.tokenizer, text, how, cancel, on)
    }
}

/// The likeliest tokens' logprobs by id.
fn by_id(choice: &engine::Choice) -> Vec<f32> {
    assert_eq!(choice.top.len(), VOCAB as usize);
    let mut all = vec![f32::NAN; VOCAB as usize];
    choice.top.iter().for_each(|l| all[l.id as usize] = l.logprob);
    all
}

/// Three turns; each one's first logits against a fresh sequence that is fed everything before at once.
fn turns_are_read_once(name: &str) {
    let mut r = rig(name, CHATML, None);
    let mut fresh = rig(name, CHATML, None);
    let mut known = 0;
    for (i, text) in ["Hello there", "And <|im_end|> now?", "Go on"].into_iter().enumerate() {
        let turn = r.say(text, &how(7)).unwrap();
        assert_eq!(turn.reread, None, "turn {i}");
        let ids = r.conversation.ids().to_vec();
        let made = turn.answer.ids.len();
        // The last token of the turn before had not been fed yet when that turn ended for its length.
        let pending = usize::from(i > 0);
        assert_eq!(turn.answer.prompt_tokens, ids.len() - made - known + pending, "turn {i} reads what is new");
        let whole = Request { prompt: ids[..ids.len() - made].to_vec(), ..how(1) };
        let seq = fresh.model.exec.open().unwrap();
        let again =
            engine::generate(&mut fresh.model.exec, None, seq, &whole, &AtomicBool::new(false), &mut |_| {}).unwrap();
        fresh.model.exec.close(seq).unwrap();
        let off = by_id(&turn.answer.choices[0])
            .iter()
            .zip(by_id(&again.choices[0]))
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, |m: f32, d| if d.is_nan() { f32::INFINITY } else { m.max(d) });
        assert!(off < TOLERANCE, "{name} turn {i}: off by {off}");
        assert!(made > 0 && ids.ends_with(&turn.answer.ids), "the answer's own ids are kept");
        known = ids.len();
    }
    assert_eq!(r.conversation.messages().len(), 6);
}

#[test]
fn a_dense_model_reads_each_turn_once() {
    turns_are_read_once("llama-a");
}

#[test]
fn a_recurrent_mixture_reads_each_turn_once() {
    turns_are_read_once("qwen3_5_moe-a");
}

#[test]
fn markup_a_user_types_stays_text_in_later_turns() {
    let mut r = rig("llama-a", CHATML, None);
    r.say("Hi", &how(3)).unwrap();
    let before = r.conversation.ids().len();
    let turn = r.say("<|im_end|>", &how(3)).unwrap();
    let new = &r.conversation.ids()[before..];
    let read = &new[..new.len() - turn.answer.ids.len()];
    // The end of the answer before and the end of this message; the user's own is spelled out.
    assert_eq!(read.iter().filter(|&&id| id == 1).count(), 2);
}

#[test]
fn a_template_that_rewrites_earlier_turns_is_read_again_and_says_so() {
    let mut r = rig("llama-a", FORGETFUL, None);
    assert_eq!(r.say("one", &how(4)).unwrap().reread, None);
    let turn = r.say("two", &how(4)).unwrap();
    assert!(matches!(turn.reread, Some(Reread::Rendered { at: 12, .. })), "{:?}", turn.reread);
    let ids = r.conversation.ids().len();
    assert_eq!(turn.answer.prompt_tokens, ids - turn.answer.ids.len(), "all of it was read");
    assert!(turn.reread.unwrap().to_string().contains("byte 12"));
}

#[test]
fn a_full_context_is_an_error_that_reset_mends() {
    let mut r = rig("llama-a", CHATML, Some(64));
    let first = r.say("Hello there", &how(100)).unwrap();
    assert_eq!(first.answer.finish, Finish::ContextFull);
    for _ in 0..2 {
        let e = r.say("More", &how(5)).unwrap_err();
        assert!(matches!(e, Error::PromptTooLong { context: 64, .. }), "{e}");
        assert_eq!(r.conversation.messages().len(), 2, "the turn that failed is not part of it");
    }
    r.conversation.reset(&mut r.model.exec).unwrap();
    assert!(r.conversation.messages().is_empty() && r.conversation.ids().is_empty());
    let again = r.say("Hello there", &how(100)).unwrap();
    assert_eq!(again.answer.ids, first.answer.ids);
}

#[test]
fn a_stopped_answer_is_part_of_the_conversation() {
    let mut r = rig("qwen3_5_moe-a", CHATML, None);
    let cancel = AtomicBool::new(false);
    let mut tokens = 0;
    let turn = r.say_until("Hi", &how(50), &cancel, &mut |e| {
        tokens += u32::from(matches!(e, Event::Token(_)));
        cancel.store(tokens == 3, Ordering::Relaxed);
    });
    assert_eq!(turn.unwrap().answer.finish, Finish::Cancelled);
    assert_eq!(r.conversation.messages().len(), 2);
    let next = r.say("Go on", &how(3)).unwrap();
    assert_eq!(next.reread, None);
}

#[test]
fn a_turn_stopped_while_it_was_read_leaves_no_trace() {
    let mut r = rig("qwen3_5_moe-a", CHATML, None);
    r.say("Hi", &how(3)).unwrap();
    let turn = r.say_until("Not this", &how(3), &AtomicBool::new(true), &mut |_| {}).unwrap();
    assert_eq!(turn.answer.finish, Finish::Cancelled);
    assert_eq!(r.conversation.messages().len(), 2);
    assert_eq!(r.say("But this", &how(3)).unwrap().reread, Some(Reread::Unfinished));
    assert_eq!(r.conversation.messages().len(), 4);
}

#[test]
fn a_penalty_counts_earlier_turns() {
    let seen_word = |penalty| {
        let mut r = rig("llama-a", CHATML, None);
        let mut how = how(2);
        r.say("q", &how).unwrap();
        how.sampling.repetition_penalty = penalty;
        let q = r.tokenizer.id_of("q").unwrap() as usize;
        by_id(&r.say("x", &how).unwrap().answer.choices[0])[q]
    };
    assert!((seen_word(1.0) - seen_word(50.0)).abs() > 0.1);
}
