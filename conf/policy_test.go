package conf

import (
	"strings"
	"testing"
	"time"
)

func TestPolicyKeys(t *testing.T) {
	t.Parallel()
	c, err := ParseTOML("nhc.toml", []byte(`[policy."gpu.xid.79"]
action = "observe"
strikes = "2 of 3"
passes = 3
cooldown = "90m"
hours = "Mon-Fri 08:00-18:00"
remedy = "power-cycle"
why = "site rule 7"
contexts = ["healthcheck"]
`))
	if err != nil {
		t.Fatal(err)
	}
	p := c.Policies["gpu.xid.79"]
	if p.Action != Observed || p.Strikes != (Strikes{2, 3}) || p.Passes != 3 || p.Cooldown != 90*time.Minute || p.Hours.Text != "Mon-Fri 08:00-18:00" ||
		p.Remedy != "power-cycle" || p.Why != "site rule 7" || len(p.Contexts) != 1 || c.Places["gpu.xid.79"].Line != 1 {
		t.Errorf("%+v at %v", p, c.Places)
	}
	if p := (Policy{Cooldown: -1}).Or(Policy{Cooldown: time.Hour}); p.Cooldown != -1 {
		t.Errorf("no cool-down: %s", p.Cooldown)
	}
	for text, want := range map[string]string{
		`strikes = 0`:             `policy.gpu.strikes: 0: want "N of M" runs, such as "2 of 3", with M at most 500`,
		`strikes = "3 of 2"`:      `policy.gpu.strikes: "3 of 2": want "N of M" runs, such as "2 of 3", with M at most 500`,
		`strikes = "2/3"`:         `policy.gpu.strikes: "2/3": want "N of M" runs, such as "2 of 3", with M at most 500`,
		`strikes = "1 of 501"`:    `policy.gpu.strikes: "1 of 501": want "N of M" runs, such as "2 of 3", with M at most 500`,
		`passes = 0`:              `policy.gpu.passes: 0: want a whole number of runs, 1 to 500`,
		`passes = "3"`:            `policy.gpu.passes: "3": want a whole number of runs, 1 to 500`,
		`cooldown = 30`:           `policy.gpu.cooldown: 30: want minutes or hours, such as "30m" or "2h"`,
		`cooldown = "-5m"`:        `policy.gpu.cooldown: "-5m": want minutes or hours, such as "30m" or "2h"`,
		`cooldown = "1000h"`:      `policy.gpu.cooldown: "1000h": want at most 744h`,
		`hours = "9-17"`:          `policy.gpu.hours: "9-17": want days and hours, such as "Mon-Fri 08:00-18:00" or "22:00-06:00, Sat 06:00-22:00"`,
		`why = ""`:                `policy.gpu.why: "": want a text of one line`,
		`remedy = 3`:              `policy.gpu.remedy: 3: want a text of one line`,
		`action = "observed"`:     `policy.gpu.action: "observed": want observe`,
		`strike = 3`:              `unknown key policy.gpu.strike: want strikes`,
		`strikes = 9999999999999`: `policy.gpu.strikes: 9999999999999: want "N of M" runs`,
	} {
		if _, err := ParseTOML("nhc.toml", []byte("[policy.gpu]\n"+text+"\n")); err == nil || !strings.HasPrefix(err.Error(), "nhc.toml:2: "+want) {
			t.Errorf("%s: %v, want nhc.toml:2: %s", text, err, want)
		}
	}
}

func TestHours(t *testing.T) {
	t.Parallel()
	at := func(text string) time.Time {
		const monday = 23 // of November 2026
		when, err := time.Parse("Mon 15:04", text)
		if err != nil {
			t.Fatal(err)
		}
		day := map[string]int{"Mon": 0, "Tue": 1, "Wed": 2, "Thu": 3, "Fri": 4, "Sat": 5, "Sun": 6}[text[:3]]
		return time.Date(2026, 11, monday+day, when.Hour(), when.Minute(), 59, 0, time.Local)
	}
	for text, times := range map[string]struct{ in, out string }{
		"Mon-Fri 08:00-18:00":              {"Mon 08:00, Fri 17:59", "Mon 07:59, Fri 18:00, Sat 12:00, Sun 12:00"},
		"08:00-18:00":                      {"Sun 08:00, Sat 17:59", "Sun 18:00"},
		"22:00-06:00":                      {"Mon 22:00, Tue 05:59, Sun 00:00", "Tue 06:00, Tue 21:59"},
		"Fri 22:00-06:00":                  {"Fri 22:00, Sat 05:59", "Fri 05:00, Sat 22:00, Sun 01:00"},
		"Sat 00:00-24:00, Sun 00:00-24:00": {"Sat 00:00, Sun 23:59", "Mon 00:00, Fri 23:59"},
		"Sat-Mon 10:00-11:00":              {"Sat 10:00, Sun 10:30, Mon 10:59", "Tue 10:00, Fri 10:30"},
	} {
		h, err := ParseHours(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		for in := range strings.SplitSeq(times.in, ", ") {
			if !h.Has(at(in)) {
				t.Errorf("%s lacks %s", text, in)
			}
		}
		for out := range strings.SplitSeq(times.out, ", ") {
			if h.Has(at(out)) {
				t.Errorf("%s has %s", text, out)
			}
		}
	}
	for _, text := range []string{"", "Mon", "08:00", "25:00-26:00", "Mo 08:00-09:00", "Mon-Fry 08:00-09:00", "Mon 08:00 - 09:00", "08:00-09:00,", "08:00-9am"} {
		if _, err := ParseHours(text); err == nil {
			t.Errorf("%q has no error", text)
		}
	}
	if !(*Hours)(nil).Has(time.Now()) {
		t.Error("without hours it is always")
	}
}
