package lbnl

import (
	"maps"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// inRoot adds files to a scenario and runs its command in their directory.
func inRoot(s checktest.Scenario, files map[string]string) checktest.Scenario {
	s.Files = files
	s.Vars = map[string]string{"PWD": "{root}"}
	return s
}

func TestCmdStatus(t *testing.T) { checktest.Run(t, "check_cmd_status") }

var _ = checktest.Table("check_cmd_status", func(string) []checktest.Scenario {
	const name = "check_cmd_status:  "
	status := func(command, text, want, got string) checks.Finding {
		return cmdFinding("cmd.status", command, name+text+` returned by "`+command+`".`, want, got)
	}
	return []checktest.Scenario{
		onLine("success", checktest.Of("true")).OrTable(map[string]any{"argv": []any{"true"}}),
		onLine("expected status", checktest.Of("-t", "60", "-r", "3", "sh", "-c", "exit 3")).
			OrTable(map[string]any{"timeout": int64(60), "status": int64(3), "argv": []any{"sh", "-c", "exit 3"}}),
		onLine("no command", checktest.Of()),
		onLine("standard input is empty", checktest.Of("cat")),
		onLine("builtin", checktest.Of("[", "-d", "/usr", "]")),
		onLine("builtin that is no program", checktest.Of("cd", "/usr")),
		onLine("much output", checktest.Of("head", "-c", "10000000", "/dev/zero")),

		onLine("status", checktest.Of("false"), status("false", "1", "0", "1")),
		onLine("unexpected status", checktest.Of("-r", "1", "true"), status("true", "0 (expected 1)", "1", "0")),
		onLine("no command but a status", checktest.Of("-r", "1"), status("", "0 (expected 1)", "1", "0")),
		onLine("not found", checktest.Of("/no/such/program", "-x"),
			status("/no/such/program -x", "127", "0", "127: run /no/such/program: no such file or directory")),
		onLine("not executable", checktest.Of("/etc/passwd"), status("/etc/passwd", "126", "0", "126: run /etc/passwd: permission denied")),
		onLine("killed", checktest.Of("sh", "-c", "kill -9 $$"), status("sh -c kill -9 $$", "137", "0", "137")),
		onLine("the alarm comes first", checktest.Of("-t", "1", "sh", "-c", "sleep 20; true"), status("sh -c sleep 20; true", "142", "0", "142")),

		withTIMEOUT(onLine("longer than slurmd lets it run", checktest.Of("-t", "60", "true")).In(50*time.Second), "120"),
		onLine("longer than the run", checktest.Of("-t", "31", "true"), checktest.UsageFinding(name+"Command timeout 31 exceeds NHC timeout 30", "")).In(30 * time.Second),
		onLine("timeout is no number", checktest.Of("-t", "1.5", "true"), cmdValue("check_cmd_status", "timeout", "1.5", "whole seconds")),
		onLine("status is no number", checktest.Of("-r", "one", "true"), cmdValue("check_cmd_status", "exit status", "one", "a whole number")),
		onLine("unknown option under another name", checktest.Of("-C", "my_check", "-q", "true"),
			checktest.UsageFinding("my_check:  Invalid option:  -q", "one of -r -t -C")),
		onLine("unknown option", checktest.Of("-q", "true"), checktest.UsageFinding(name+"Invalid option:  -q", "one of -r -t -C")),
		onLine("option without its argument", checktest.Of("-t"), checktest.UsageFinding(name+"Option -t requires an argument.", "")),
		inRoot(onLine("garbage for a program", checktest.Of("{root}/p"), status("{root}/p", "126", "0", "126: run {root}/p: exec format error")), map[string]string{"p": "\x7fELF\x00\xff"}).OnBroken(),
	}
})

// withTIMEOUT sets the TIMEOUT of the site, which can be longer than slurmd lets a run take.
func withTIMEOUT(s checktest.Scenario, seconds string) checktest.Scenario {
	s.Vars, s.UnitOnly = maps.Clone(s.Vars), true
	if s.Vars == nil {
		s.Vars = map[string]string{}
	}
	s.Vars["TIMEOUT"] = seconds
	return s
}

// TestCommandTimeout shows that the message depends on the signal that ended the command.
func TestCommandTimeout(t *testing.T) {
	t.Parallel()
	const timeout = `check_cmd_status:  TIMEOUT after 5s for "nvidia-smi"; subprocess terminated.`
	for _, c := range []struct {
		name string
		exit probe.Exit
		want int
		text string
		got  string
	}{
		{name: "alarm", exit: probe.Exit{Status: 142, TimedOut: true}, text: `check_cmd_status:  142 returned by "nvidia-smi".`, got: "142"},
		{name: "SIGTERM", exit: probe.Exit{Status: 143, TimedOut: true}, text: timeout, got: "143"},
		{name: "SIGKILL", exit: probe.Exit{Status: 137, TimedOut: true}, text: timeout, got: "137"},
		{name: "SIGTERM of another process", exit: probe.Exit{Status: 143}, text: `check_cmd_status:  143 returned by "nvidia-smi".`, got: "143"},
		{name: "own status after the signal", exit: probe.Exit{Status: 3, TimedOut: true}, text: `check_cmd_status:  3 returned by "nvidia-smi".`, got: "3"},
		{name: "not ended: blocked in a driver", exit: probe.Exit{Status: 137, TimedOut: true, Stuck: true}, text: timeout,
			got: "still there after SIGKILL"},
		{name: "wanted", exit: probe.Exit{Status: 143, TimedOut: true}, want: 143},
	} {
		run := commandRun{check: "check_cmd_status", text: "nvidia-smi", limit: "5", want: c.want}
		f := run.judge(c.exit)
		if c.text == "" && f == nil {
			continue
		}
		if len(f) != 1 || f[0].Message != c.text || f[0].Got != c.got {
			t.Errorf("%s: got %+v, want %s", c.name, f, c.text)
		}
	}
}

// TestCommandWithoutTime shows that a limit of 0 s kills the command immediately, as LBNL NHC does.
func TestCommandWithoutTime(t *testing.T) {
	t.Parallel()
	c := &cmdOutput{Command: "sleep 20", Limit: "0", Name: "check_cmd_output"}
	f := c.Run(t.Context(), &checks.Env{Host: probe.NewHost("/")})
	const want = `check_cmd_output:  TIMEOUT after 0s for "sleep 20"; subprocess terminated.`
	if len(f) != 1 || f[0].Message != want {
		t.Errorf("got %+v, want %s", f, want)
	}
}

func TestCommandEnvironment(t *testing.T) {
	t.Parallel()
	env := &checks.Env{Host: probe.NewHost("/"), Vars: map[string]string{"PWD": "/usr"}}
	env.Host.SetEnviron([]string{"SITE=here"})
	for _, words := range [][]string{
		{"check_cmd_status", "sh", "-c", `[ "$SITE $PWD" = "here /usr" ]`},
		{"check_cmd_status", "[", "-d", "bin", "]"},
		{"check_cmd_output", "-m", "here", "-e", "printenv SITE"},
		{"check_file_test", "-d", "${NONE:-/$SITE}/../bin"},
	} {
		info, _ := checks.Lookup(words[0])
		c := info.New()
		if err := checks.Bind(c, words[1:]); err != nil {
			t.Fatal(err)
		}
		got := c.Run(t.Context(), env)
		if fails := checks.Worst(got) == checks.Fail; fails != (words[0] == "check_file_test") {
			t.Errorf("%q: %+v", words, got)
		}
	}
}

func TestCommandTable(t *testing.T) {
	t.Parallel()
	c := &cmdStatus{}
	if err := checks.BindTable(c, map[string]any{"command": "test -d  /usr"}); err != nil {
		t.Fatal(err)
	}
	if f := c.Run(t.Context(), &checks.Env{Host: probe.NewHost("/")}); f != nil {
		t.Errorf("got %+v", f)
	}
}
