//! `snug serve`: a model behind HTTP.

use crate::args::{Reuse, ServeArgs};
use crate::fault::{Ended, INTERRUPTED, usage};
use crate::load::{answering, less};
use crate::output::note;
use crate::resolve;
use crate::serve::{Serving, Share, engine_backend, script_backend, serving};
use anyhow::{Context, anyhow};
use engine::OpenOptions;
use engine::batch::{Keeping, Park};
use engine::disk::Where;
use engine::open::Opened;
use memory::Plan;
use server::{Config, Loading, Server};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// Where tokens come from.
enum Source {
    Engine(Box<(OpenOptions, Plan)>),
    Script(Vec<u8>),
}

/// Serves until it is told to stop.
pub fn run(a: &ServeArgs, verbose: bool) -> anyhow::Result<Ended> {
    logs(a, verbose);
    let opened = Opened::open(resolve::source(a.model.as_deref())?)?;
    let config = config(a)?;
    // A model that is refused is not served for a moment: nobody listens before it is accepted.
    let source = source(a, &opened)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(16)
        .enable_all()
        .build()
        .context("cannot start the server's threads")?;
    let ended = runtime.block_on(serve(a, config, opened, source));
    // A request's reader that is still at work is of no use to anybody.
    runtime.shutdown_timeout(Duration::from_millis(500));
    ended
}

async fn serve(a: &ServeArgs, config: Config, opened: Opened, source: Source) -> anyhow::Result<Ended> {
    let share = share(a)?;
    let (mut interrupted, mut terminated) = (watch(SignalKind::interrupt())?, watch(SignalKind::terminate())?);
    let loading = Loading::default();
    let server = Server::bind(config, loading.clone()).await.map_err(listen_fault)?;
    note(format_args!("listening on http://{}", server.address()));
    note("loading the model; requests wait for it");
    let (loaded, outcome) = oneshot::channel();
    let name = a.name.clone().or_else(|| resolve::asked_for(a.model.as_deref()?));
    let (dialect, queue) = (a.dialect.clone(), a.queue);
    std::thread::Builder::new()
        .name("load".into())
        .spawn(move || {
            let made = match source {
                Source::Engine(how) => engine_backend(opened, *how, name, dialect.as_deref(), queue, share, &loading),
                Source::Script(text) => script_backend(&opened, &text, name, dialect.as_deref(), queue),
            };
            let made = made.map(|ready| {
                let name = ready.backend.facts().name.clone();
                loading.ready(ready);
                // Who reads this may ask at once.
                note(format_args!("{name} is ready"));
            });
            // Nobody waiting means that the server was stopped.
            let _ = loaded.send(made);
        })
        .context("cannot start a thread")?;
    let mut why = None;
    let stop = async {
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
            e = failure(outcome) => why = Some(e),
        }
        // Whoever asks twice is in a hurry.
        tokio::spawn(async move {
            interrupted.recv().await;
            std::process::exit(INTERRUPTED.into());
        });
    };
    server.run(stop).await;
    why.map_or(Ok(Ended::Done), Err)
}

/// Waits for the model and, if it is there, for ever.
async fn failure(outcome: oneshot::Receiver<anyhow::Result<()>>) -> anyhow::Error {
    match outcome.await {
        Ok(Ok(())) => std::future::pending().await,
        Ok(Err(e)) => e,
        Err(_) => anyhow!("loading the model panicked"),
    }
}

fn watch(kind: SignalKind) -> anyhow::Result<tokio::signal::unix::Signal> {
    signal(kind).context("cannot take over signals")
}

fn listen_fault(e: server::Error) -> anyhow::Error {
    match e {
        server::Error::Open(_) | server::Error::Listen { .. } => crate::fault::Usage(e.to_string()).into(),
        other => other.into(),
    }
}

fn source(a: &ServeArgs, opened: &Opened) -> anyhow::Result<Source> {
    let Some(backend) = a.backend.as_deref() else {
        let kept = a.cache_dir.is_some();
        let mut how = serving(answering(&a.on, a.ahead)?, Serving { queue: a.queue, snapshots: snapshots(a), kept });
        if let Some(said) = opened.settle(&mut how) {
            tracing::debug!("device: {said}");
        }
        let plan = opened.plan(&how)?;
        if let Some(less) = less(opened, &how, &plan)? {
            note(format_args!("note: {less}"));
        }
        return Ok(Source::Engine(Box::new((how, plan))));
    };
    let Some(file) = backend.strip_prefix("script:") else {
        return usage(format!("--backend is {backend:?}; known is script:FILE"));
    };
    let text = std::fs::read(file).with_context(|| format!("cannot read {file}"))?;
    Ok(Source::Script(text))
}

/// How requests share the model.
fn share(a: &ServeArgs) -> anyhow::Result<Share> {
    if !(a.patience >= 1.0 && a.patience.is_finite()) {
        return usage(format!("--patience is {}; it must be 1 or more", a.patience));
    }
    let keeping = Keeping { snapshots: snapshots(a), park: Park::F32, exact: a.reuse == Reuse::Exact };
    let disk = a.cache_dir.clone().map(|dir| Where { dir, most: a.cache_size });
    if disk.is_some() && (a.reuse == Reuse::Off || a.backend.is_some()) {
        return usage("--cache-dir keeps what a model read; it goes with neither --reuse off nor --backend");
    }
    Ok(Share { patience: a.patience, keeping, disk, stats: a.on.stats })
}

/// Most bytes of kept states.
fn snapshots(a: &ServeArgs) -> u64 {
    if a.reuse == Reuse::Off { 0 } else { u64::from(a.snapshots) << 20 }
}

fn config(a: &ServeArgs) -> anyhow::Result<Config> {
    let host = if a.host == "localhost" { "127.0.0.1" } else { a.host.as_str() };
    let Ok(ip) = host.trim_matches(['[', ']']).parse() else {
        return usage(format!("--host is {:?}; it must be an IP address such as 127.0.0.1 or 0.0.0.0", a.host));
    };
    if a.api_key.as_deref() == Some("") {
        return usage("--api-key is empty");
    }
    Ok(Config {
        listen: SocketAddr::new(ip, a.port),
        api_key: a.api_key.clone(),
        allow_open: a.allow_open,
        origins: a.cors_origin.clone(),
        max_body: (a.max_body as usize) << 20,
        drain: Duration::from_secs(a.drain.into()),
        strip_volatile: !a.keep_volatile,
        ..Config::default()
    })
}

/// Logs go to stderr; they name requests, sizes and times, never content.
fn logs(a: &ServeArgs, verbose: bool) {
    let level = if verbose { tracing::Level::DEBUG } else { tracing::Level::INFO };
    let logs = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_target(false);
    // There is one subscriber in a process's life, and this is where it begins.
    let _ = match a.log {
        crate::args::LogFormat::Text => logs.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        crate::args::LogFormat::Json => logs.json().try_init(),
        crate::args::LogFormat::Off => return,
    };
}
