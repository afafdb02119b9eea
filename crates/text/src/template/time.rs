//! `strftime` for the date lines of system prompts, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970, negative before.
pub fn seconds(t: SystemTime) -> i64 {
    match t.duration_since(UNIX_EPOCH) {
        Ok(d) => i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
        Err(e) => -i64::try_from(e.duration().as_secs()).unwrap_or(i64::MAX),
    }
}

const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A point in time taken apart.
struct Parts {
    year: i64,
    month: i64,
    day: i64,
    /// Monday is 0.
    weekday: i64,
    /// From 1.
    day_of_year: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Parts {
    /// Gregorian calendar from days since 1970 (Hinnant, "chrono-compatible low-level date algorithms").
    fn of(seconds: i64) -> Self {
        // Beyond the year 9999 (as in Python) the calendar stops; nobody's clock is there.
        let seconds = seconds.clamp(-62_135_596_800, 253_402_300_799);
        let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let z = days + 719_468;
        let (era, doe) = (z.div_euclid(146_097), z.rem_euclid(146_097));
        let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
        let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
        let mp = (5 * doy + 2) / 153;
        let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
        let year = yoe + era * 400 + i64::from(month <= 2);
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][(month - 1) as usize];
        Self {
            year,
            month,
            day,
            weekday: (days + 3).rem_euclid(7),
            day_of_year: before + day + i64::from(leap && month > 2),
            hour: rest / 3600,
            minute: rest / 60 % 60,
            second: rest % 60,
        }
    }
}

/// The time in the given form. Directives not listed here are left as they are.
pub fn format(form: &str, seconds: i64) -> String {
    let t = Parts::of(seconds);
    let mut out = String::with_capacity(form.len() + 16);
    let mut chars = form.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let bare = chars.next_if_eq(&'-').is_some();
        match chars.next() {
            Some(d) => match directive(d, bare, &t, seconds) {
                Some(text) => out.push_str(&text),
                None => out.extend(['%'].into_iter().chain(bare.then_some('-')).chain([d])),
            },
            None => out.push('%'),
        }
    }
    out
}

fn directive(d: char, bare: bool, t: &Parts, seconds: i64) -> Option<String> {
    let number = |n: i64, width: usize| if bare { n.to_string() } else { format!("{n:0width$}") };
    let (day, month) = (DAYS[t.weekday as usize], MONTHS[(t.month - 1) as usize]);
    let twelve = (t.hour + 11) % 12 + 1;
    Some(match d {
        'Y' => number(t.year, 4),
        'y' => number(t.year % 100, 2),
        'm' => number(t.month, 2),
        'd' => number(t.day, 2),
        'e' => format!("{:2}", t.day),
        'H' => number(t.hour, 2),
        'I' => number(twelve, 2),
        'M' => number(t.minute, 2),
        'S' => number(t.second, 2),
        'j' => number(t.day_of_year, 3),
        'f' => "000000".into(),
        'p' => if t.hour < 12 { "AM" } else { "PM" }.into(),
        'A' => day.into(),
        'a' => day[..3].into(),
        'B' => month.into(),
        'b' | 'h' => month[..3].into(),
        'u' => (t.weekday + 1).to_string(),
        'w' => ((t.weekday + 1) % 7).to_string(),
        'F' => format("%Y-%m-%d", seconds),
        'T' => format("%H:%M:%S", seconds),
        'R' => format("%H:%M", seconds),
        'D' => format("%m/%d/%y", seconds),
        'c' => format("%a %b %e %H:%M:%S %Y", seconds),
        'x' => format("%m/%d/%y", seconds),
        'X' => format("%H:%M:%S", seconds),
        'Z' => "UTC".into(),
        'z' => "+0000".into(),
        's' => seconds.to_string(),
        'n' => "\n".into(),
        't' => "\t".into(),
        '%' => "%".into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_that_python_gave() {
        // datetime.fromtimestamp(s, UTC).strftime("%d %b %Y %H:%M:%S %A %j %I%p")
        let form = "%d %b %Y %H:%M:%S %A %j %I%p";
        for (s, text) in [
            (0, "01 Jan 1970 00:00:00 Thursday 001 12AM"),
            (951_782_399, "28 Feb 2000 23:59:59 Monday 059 11PM"),
            (951_825_600, "29 Feb 2000 12:00:00 Tuesday 060 12PM"),
            (4_107_542_400, "01 Mar 2100 00:00:00 Monday 060 12AM"),
            (-1, "31 Dec 1969 23:59:59 Wednesday 365 11PM"),
            (1_767_312_000, "02 Jan 2026 00:00:00 Friday 002 12AM"),
        ] {
            assert_eq!(format(form, s), text);
        }
        assert_eq!(format("%-d.%-m. %e %% %Q %", 0), "1.1.  1 % %Q %");
        format("%Y", i64::MAX);
        format("%Y", i64::MIN);
    }
}
