//! Drives a request from admission to its last byte, the same for every dialect.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use serde_json::Value;
use tokio::time::{Instant as Deadline, sleep_until};

use crate::answer::{Answer, Answers, Step};
use crate::app::App;
use crate::backend::{Event, Failure, Job, Known, Ticket};
use crate::fault::{Fault, Kind};
use crate::frames::Frames;
use crate::http::conn::Conn;
use crate::ids;
use crate::output::{Finish, Output};
use crate::places;
use crate::registry::{Entry, Reuse};
use crate::request::GenerateRequest;

/// How often a peer that closed its half of the connection is asked whether it still listens.
const PROBE: Duration = Duration::from_millis(500);

/// How long the error of a response that is broken off has to reach the socket.
const TO_FLUSH: Duration = Duration::from_millis(50);

/// What a dialect of the wire makes of answers.
pub trait Render: Send + 'static {
    /// The stream begins.
    fn begin(&mut self, _: &Answers, _: &mut Frames) {}
    /// The answer is begun: how much of the prompt was there before is known now.
    fn started(&mut self, _: &Answers, _: &mut Frames) {}
    /// An answer has grown. `step.ended` comes once for each; its [`Answer::finish`] is known then.
    fn step(&mut self, choice: usize, step: &Step, answers: &Answers, out: &mut Frames);
    /// All answers have ended.
    fn end(&mut self, answers: &Answers, out: &mut Frames);
    /// Something to keep the connection alive; `status` says what is going on.
    fn ping(&mut self, status: &str, out: &mut Frames) {
        out.comment(status);
    }
    /// It failed after the stream had begun.
    fn fail(&mut self, fault: &Fault, answers: &Answers, out: &mut Frames);
    /// The response of a request that does not stream.
    fn whole(&mut self, answers: &Answers) -> Value;
    /// The body of an error.
    fn fault(&self, fault: &Fault) -> Value;
}

/// A request that was admitted.
struct Running {
    app: Arc<App>,
    tickets: Vec<Option<Ticket>>,
    answers: Answers,
    status: String,
    entry: Entry,
    conn: Conn,
    failed: Option<Kind>,
    /// For each answer's prompt, where its messages begin.
    begins: Vec<Arc<[(u32, String)]>>,
    /// What was known of the first prompt that was begun.
    reuse: Option<Reuse>,
}

/// Admits a request and answers it.
///
/// # Errors
/// Everything that is known before the first token is a fault with its status.
pub async fn answer(
    app: &Arc<App>,
    request: GenerateRequest,
    conn: Conn,
    render: impl Render,
) -> Result<Response, Fault> {
    let stream = request.stream;
    let running = admit(app, request, conn).await?;
    if stream {
        return Ok(streamed(running, Box::new(render)));
    }
    whole(running, Box::new(render)).await
}

async fn admit(app: &Arc<App>, request: GenerateRequest, conn: Conn) -> Result<Running, Fault> {
    let entry = app.registry.enter(conn.request_id());
    let n = request.n.max(1);
    let shared = Arc::clone(app);
    // Rendering, tokenising and compiling grammars take their time and must not hold up other connections.
    let prepared = tokio::task::spawn_blocking(move || -> Result<_, Fault> {
        let ready = shared.ready()?;
        let context = ready.backend.facts().context;
        let mut wanted = Vec::new();
        for prompt in std::iter::once(&request.prompt).chain(&request.further) {
            let p = ready.voice.prepare_one(&request, prompt)?;
            if p.ids.len() >= context as usize {
                return Err(Fault::too_long(p.ids.len(), context));
            }
            for i in 0..n {
                wanted.push((i, p.clone(), ready.voice.constraint(&request, &p)?));
            }
        }
        Ok((request, wanted))
    });
    let (request, wanted) =
        prepared.await.map_err(|_| Fault::new(Kind::Internal, "the request's reader panicked"))??;
    let ready = app.ready()?;
    let sampling = request.sampling.over(&ready.backend.facts().sampling);
    let (mut all, mut tickets, mut prompt_tokens, mut begins) = (Vec::new(), Vec::new(), 0, Vec::new());
    for (i, p, constraint) in wanted {
        prompt_tokens += if i == 0 { p.ids.len() as u32 } else { 0 };
        let output = Output::new(&ready.voice, &p, &request.stop, ids::random());
        all.push(Answer::new(output, p.ids.len() as u32, request.logprobs.is_some()));
        let mut sampling = sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(u64::from(i));
        let job = Job {
            prompt: Arc::clone(&p.ids),
            sampling,
            max_tokens: request.max_tokens,
            constraint,
            logprobs: request.logprobs,
            prompt_logprobs: request.prompt_logprobs,
            ignore_eos: request.ignore_eos,
            at_end: if request.ignore_eos { None } else { ready.voice.at_end(&p) },
            steer: request.reasoning.budget.and_then(|n| ready.voice.bounded_reasoning(&p, n)),
        };
        tickets.push(Some(ready.backend.submit(job)?));
        begins.push(p.begins);
    }
    let answers = Answers {
        all,
        each: n,
        prompt_tokens,
        begun: Instant::now(),
        first: None,
        prefill: Duration::ZERO,
        decode: Duration::ZERO,
        passes: Duration::ZERO,
    };
    entry.admitted(answers.prompt_tokens, request.stream);
    let (app, status) = (Arc::clone(app), "waiting".into());
    Ok(Running { app, tickets, answers, status, entry, conn, failed: None, begins, reuse: None })
}

impl Running {
    /// The next event of any answer; `None` when all have ended. When the server can wait no longer, the next is a failure.
    async fn next(&mut self) -> Option<(usize, Event)> {
        let app = Arc::clone(&self.app);
        tokio::select! {
            biased;
            event = self.next_of_tickets() => event,
            () = app.cut() => Some((0, Event::Failed(crate::backend::Failure::Stopping))),
        }
    }

    async fn next_of_tickets(&mut self) -> Option<(usize, Event)> {
        let tickets = &mut self.tickets;
        poll_fn(|cx| {
            let mut open = false;
            for (i, slot) in tickets.iter_mut().enumerate() {
                let Some(ticket) = slot else { continue };
                open = true;
                if let Poll::Ready(event) = ticket.poll_next(cx) {
                    let lost = || Event::Failed(crate::backend::Failure::Internal("the generation was lost".into()));
                    return Poll::Ready(Some((i, event.unwrap_or_else(lost))));
                }
            }
            if open { Poll::Pending } else { Poll::Ready(None) }
        })
        .await
    }

    /// Takes an event.
    fn take(&mut self, choice: usize, event: Event) -> Result<Option<Step>, Fault> {
        match &event {
            Event::Queued { place } => self.say(format!("queued, place {place}"), "queued"),
            Event::Started(known) => {
                self.answers.all[choice].started(known.cached);
                self.say("started".into(), "prefill");
                self.known(choice, *known);
            }
            Event::Prefill { done, total } => {
                self.answers.all[choice].reads(*done);
                self.say(format!("reading the prompt, {done} of {total} tokens"), "prefill")
            }
            Event::Token(_) => {
                self.answers.first.get_or_insert_with(Instant::now);
                self.say("generating".into(), "decode");
            }
            Event::PromptToken(_) => {}
            Event::Done(d) => {
                self.answers.prefill += d.prefill;
                self.answers.decode += d.decode;
                self.answers.passes += d.passes;
            }
            Event::Failed(f) => {
                if let Failure::Internal(error) = f {
                    tracing::error!(request = self.conn.request_id(), error, "generation failed");
                }
                let fault = Fault::from(f.clone());
                self.failed = Some(fault.kind);
                self.tickets.clear();
                return Err(fault);
            }
        }
        if !matches!(event, Event::Token(_) | Event::PromptToken(_) | Event::Done(_)) {
            return Ok(None);
        }
        let step = self.answers.all[choice].take(event);
        if step.ended {
            // Drops the ticket: a job that a stop string ended is cancelled.
            self.tickets[choice] = None;
        }
        self.entry.made(self.answers.made());
        Ok(Some(step))
    }

    fn known(&mut self, choice: usize, known: Known) {
        if self.reuse.is_some() {
            return;
        }
        let message = known.miss.token().and_then(|at| places::holding(&self.begins[choice], at)).cloned();
        let reuse = Reuse { cached: known.cached, why: known.miss.why(), token: known.miss.token(), message };
        self.entry.reuse(&reuse);
        self.reuse = Some(reuse);
    }

    fn say(&mut self, status: String, phase: &'static str) {
        if self.status != status {
            self.entry.phase(phase, &status);
            self.status = status;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let a = &self.answers;
        let ended = a.all.iter().all(|x| x.finish.is_some());
        let how = match (self.failed, ended) {
            (Some(_), _) => "failed",
            (None, false) => "cancelled",
            (None, true) => match a.all.first().and_then(|x| x.finish.as_ref()) {
                Some(Finish::Length | Finish::ContextFull) => "length",
                Some(Finish::ToolCalls) => "tool_calls",
                Some(Finish::Incomplete(_)) => "incomplete",
                _ => "stop",
            },
        };
        let ttft = a.first.map(|t| t - a.begun);
        self.app.metrics.finished(how, a, ttft);
        self.entry.ended(how);
        let miss = self.reuse.as_ref();
        tracing::info!(
            request = self.conn.request_id(),
            finish = how,
            prompt_tokens = a.prompt_tokens,
            cached_tokens = a.cached(),
            miss = miss.map(|m| m.why),
            miss_token = miss.and_then(|m| m.token),
            miss_message = miss.and_then(|m| m.message.as_deref()),
            tokens = a.made(),
            ttft_ms = ttft.map(|t| t.as_millis() as u64),
            total_ms = a.begun.elapsed().as_millis() as u64,
            "generation ended"
        );
    }
}

/// A stream of events, which ends with the request.
struct Streaming {
    running: Running,
    render: Box<dyn Render>,
    out: Frames,
    begun: bool,
    over: bool,
    last: Instant,
}

fn streamed(running: Running, render: Box<dyn Render>) -> Response {
    let s = Streaming { running, render, out: Frames::default(), begun: false, over: false, last: Instant::now() };
    let body = Body::from_stream(stream::unfold(s, |mut s| async move {
        s.fill().await;
        (!s.out.is_empty()).then(|| (Ok::<Bytes, std::convert::Infallible>(s.out.take()), s))
    }));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies must not collect the stream.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl Streaming {
    /// Waits until there is something to send, or all is over.
    async fn fill(&mut self) {
        if !self.begun {
            self.begun = true;
            self.render.begin(&self.running.answers, &mut self.out);
        }
        while self.out.is_empty() && !self.over {
            let half_closed = self.running.conn.is_half_closed();
            let pause = if half_closed { PROBE } else { self.running.app.config.ping };
            let conn = self.running.conn.clone();
            tokio::select! {
                biased;
                event = self.running.next() => self.event(event),
                () = sleep_until(Deadline::from_std(self.last + pause)) => {
                    self.render.ping(&self.running.status, &mut self.out);
                }
                () = conn.half_closes(), if !half_closed => {}
            }
        }
        // Everything that is there already goes out together.
        while !self.over
            && let Some((i, e)) = self.ready_event()
        {
            self.event(Some((i, e)));
        }
        self.last = Instant::now();
    }

    fn ready_event(&mut self) -> Option<(usize, Event)> {
        self.running.tickets.iter_mut().enumerate().find_map(|(i, t)| Some((i, t.as_mut()?.try_next()?)))
    }

    fn event(&mut self, event: Option<(usize, Event)>) {
        let Some((choice, event)) = event else {
            self.over = true;
            self.render.end(&self.running.answers, &mut self.out);
            return;
        };
        let started = matches!(event, Event::Started(_));
        match self.running.take(choice, event) {
            Ok(None) if started => self.render.started(&self.running.answers, &mut self.out),
            Ok(Some(step)) => self.render.step(choice, &step, &self.running.answers, &mut self.out),
            Ok(None) => {}
            Err(fault) => {
                self.over = true;
                self.render.fail(&fault, &self.running.answers, &mut self.out);
            }
        }
    }
}

/// What is left of a response whose headers went before it.
enum Rest {
    Coming(Whole),
    Broken(Fault),
    Over,
}

/// The future that makes a whole response's body.
type Whole = Pin<Box<dyn Future<Output = Result<Value, Box<(Fault, Value)>>> + Send>>;

/// A response in one piece. Its headers wait for it, so that a failure has its status, but not for ever: clients give up
/// on silence, so after a while the status is decided and white space, which JSON allows, keeps the connection alive. A
/// failure after that breaks the response off behind its error, so that nobody takes it for an answer.
async fn whole(running: Running, render: Box<dyn Render>) -> Result<Response, Fault> {
    let (conn, ping, decide) = (running.conn.clone(), running.app.config.ping, running.app.config.decide);
    let mut work: Whole = Box::pin(complete(running, render));
    tokio::select! {
        biased;
        done = &mut work => return done.map(|v| json(StatusCode::OK, &v)).map_err(|e| e.0),
        () = sleep_until(Deadline::now() + decide) => {}
        () = conn.half_closes() => {}
    }
    let body = Body::from_stream(stream::unfold(Rest::Coming(work), move |rest| {
        let conn = conn.clone();
        async move {
            let mut work = match rest {
                Rest::Coming(work) => work,
                Rest::Broken(why) => {
                    // What was written goes out before the connection is given up.
                    tokio::time::sleep(TO_FLUSH).await;
                    return Some((Err(why), Rest::Over));
                }
                Rest::Over => return None,
            };
            let pause = if conn.is_half_closed() { PROBE } else { ping };
            let bytes = |v: Value| Ok::<Bytes, Fault>(v.to_string().into());
            Some(tokio::select! {
                biased;
                done = &mut work => match done {
                    Ok(value) => (bytes(value), Rest::Over),
                    Err(e) => (bytes(e.1), Rest::Broken(e.0)),
                },
                () = sleep_until(Deadline::now() + pause) => (Ok(Bytes::from_static(b"\n")), Rest::Coming(work)),
            })
        }
    }));
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

async fn complete(mut running: Running, mut render: Box<dyn Render>) -> Result<Value, Box<(Fault, Value)>> {
    while let Some((choice, event)) = running.next().await {
        if let Err(fault) = running.take(choice, event) {
            let body = render.fault(&fault);
            return Err(Box::new((fault, body)));
        }
    }
    Ok(render.whole(&running.answers))
}

/// A JSON response.
pub fn json(status: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
