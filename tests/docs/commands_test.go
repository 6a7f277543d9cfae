package docs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// ours are the names of the program.
var ours = []string{"nhc-gpu", "nhc", "nhc-genconf", "nhc-wrapper"}

// shown returns the commands of the program in a piece of shell, also those that pdsh, ssh and
// the like run.
func shown(t *testing.T, where, source string) (list [][]string) {
	t.Helper()
	if !strings.Contains(source, "nhc") || strings.HasPrefix(source, "nhc-gpu on ") { // the first line of a screen
		return nil
	}
	file, err := syntax.NewParser().Parse(strings.NewReader(source), "")
	if err != nil {
		if regexp.MustCompile(`^(sudo )?nhc-(gpu|genconf|wrapper) `).MatchString(source) {
			t.Errorf("%s: %s: %v", where, source, err)
		}
		return nil
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		call, ok := n.(*syntax.CallExpr)
		if !ok {
			return true
		}
		var words []string
		for _, w := range call.Args {
			text, err := expand.Literal(&expand.Config{}, w)
			if err != nil {
				return true
			}
			words = append(words, text)
		}
		at := slices.IndexFunc(words, func(w string) bool { return slices.Contains(ours, path.Base(w)) })
		switch {
		case at == 0, at > 0 && slices.Contains([]string{"pdsh", "clush", "ssh", "sudo", "srun"}, words[0]):
			list = append(list, append([]string{path.Base(words[at])}, words[at+1:]...))
		case at < 0 && len(words) > 1:
			for _, w := range words[1:] {
				list = append(list, shown(t, where, w)...)
			}
		}
		return true
	})
	return list
}

// placeholders are words that stand for others in text.
var placeholders = map[string]string{
	"FILE": "/etc/nhc/nhc.conf", "DIR": "/root", "CODE": "79", "ID": "1234", "DEVICE": "0000:66:00.0", "GPU": "0000:66:00.0", "gpu6": "0000:66:00.0", "CHECK": "check_gpu_ecc",
	"FORMAT": "nagios", "NAME": "HGX H100", "TEXT": "Xid 79", "MESSAGE": "Xid 79", "LINE": "NVRM: Xid (PCI:0000:66:00): 79, GPU has fallen off the bus.",
}

// sandbox makes a directory with a configuration and a healthy node.
func sandbox(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := fakenvml.Place(dir, fakenvml.Scenario(fakenvml.H100, 8)); err != nil {
		t.Fatal(err)
	}
	if err := fakenvml.Write(dir+"/root", fakenvml.Files(fakenvml.H100, 8)); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/etc/nhc/nhc.conf", "* || check_gpu_count 8\n* || check_gpu_xid\n* || check_dcgm_health\n* || check_ib_errors\n")
	write(t, dir+"/etc/nhc/nhc-active.conf", "* || check_gpu_gemm\n")
	write(t, dir+"/root/nhc.conf.new", "* || check_gpu_count 8\n")
	write(t, dir+"/new.toml", "[policy.gpu]\nstrikes = 2\n")
	write(t, dir+"/events.jsonl", `{"schema":1,"node":"gpu017","time":"2026-11-23T08:00:00Z","context":"healthcheck","results":[{"check":"check_gpu_count","severity":"ok"}]}`+"\n")
	write(t, dir+"/scenario.toml", "checks = [\"check_gpu_power\"]\n[[scenario]]\nname = \"healthy\"\nnode = \"h100\"\n")
	return dir
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// run runs the program by one of its names, on the node of a sandbox. It returns the exit
// status and what the program printed; -1 if it was ended after a while.
func run(t *testing.T, dir string, argv ...string) (status int, out string) {
	t.Helper()
	limit := 2 * time.Minute
	if slices.Contains(argv, "monitor") { // which only a signal ends
		limit = time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, argv[1:]...)
	cmd.Args[0] = argv[0]
	cmd.Dir = dir
	cmd.Env = []string{"SLURMD_NODENAME=" + path.Base(path.Dir(dir)), "PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir}
	cmd.WaitDelay = 10 * time.Second
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	text, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v: %v", argv, err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

// takesSettings says whether a command takes settings of the form NAME=value.
func takesSettings(argv []string) bool {
	return argv[0] != "nhc-wrapper" && (len(argv) < 2 || strings.HasPrefix(argv[1], "-") && argv[1] != "--version" || slices.Contains([]string{"plan", "lint", "topo", "platforms", "genconf", "drill", "wrap"}, argv[1]) || slices.Contains(argv, "--installed"))
}

// Every command of the program in the documents is one that it understands. It runs on a
// simulated node: its files of /etc/nhc are a test's, and no node is drained.
func TestCommands(t *testing.T) {
	t.Parallel()
	dir := sandbox(t)
	t.Cleanup(func() {
		for _, state := range []string{"/run/nhc-gpu/", "/var/lib/nhc-gpu/"} {
			_ = os.RemoveAll(state + path.Base(path.Dir(dir)))
		}
	})
	tried := map[string]bool{}
	for name, p := range readPages(t) {
		var sources []string
		for _, b := range p.blocks() {
			b = strings.NewReplacer("|\n", "| ", "\\\n", " ").Replace(b)
			sources = append(sources, strings.Split(b, "\n")...)
		}
		for _, s := range p.spans() {
			if strings.HasPrefix(s, "nhc-") {
				sources = append(sources, s)
			}
		}
		for _, source := range sources {
			for _, argv := range shown(t, name, strings.TrimPrefix(strings.TrimSpace(source), "$ ")) {
				tryCommand(t, dir, name, argv, tried)
			}
		}
	}
	if len(tried) < 50 {
		t.Errorf("only %d commands", len(tried))
	}
}

func tryCommand(t *testing.T, dir, name string, argv []string, tried map[string]bool) {
	t.Helper()
	text := strings.Join(argv, " ")
	if tried[text] || strings.ContainsAny(text, "[") || strings.Contains(text, "...") || strings.HasSuffix(text, " clears it") || strings.HasSuffix(text, ", on a node") || slices.Contains(argv, "-L") {
		return // a synopsis, a message, or a loop
	}
	tried[text] = true
	argv = slices.Clone(argv)
	for i, w := range argv[1:] {
		switch p, ok := placeholders[w]; {
		case w == "NAME" && (argv[1] == "check" || argv[1] == "explain"):
			w = "check_gpu_ecc"
		case ok:
			w = p
		}
		argv[i+1] = strings.NewReplacer("=FILE", "="+dir+"/etc/nhc/nhc.conf", "=DIR", "="+dir+"/root", "/etc/nhc/", dir+"/etc/nhc/", "/root", dir+"/root").Replace(w)
	}
	switch {
	case slices.Contains(argv, "--file"):
		argv[len(argv)-1] = dir + "/scenario.toml"
	case text == "nhc-gpu selftest", text == "nhc-gpu selftest --installed":
		argv = append(argv, "check_gpu_power") // all of it takes long
	}
	if at := slices.Index(argv, "-c"); at > 0 && at+1 < len(argv) && (argv[0] == "nhc-genconf" || len(argv) > 1 && argv[1] == "genconf") {
		argv[at+1] = "-" // it overwrites no file
	}
	if takesSettings(argv) {
		argv = append(argv, "LOGFILE=-", "MARK_OFFLINE=0", "NVML_LIBRARY="+dir+"/libnvidia-ml.so.1")
		for _, s := range []string{"CONFDIR=" + dir + "/etc/nhc", "HOSTROOT=" + dir + "/root"} {
			setting, _, _ := strings.Cut(s, "=")
			if !slices.ContainsFunc(argv, func(w string) bool { return strings.HasPrefix(w, setting+"=") }) {
				argv = append(argv, s)
			}
		}
	}
	if len(argv) > 1 && argv[1] == "sweep" { // it would test the cluster of this machine
		argv = append(argv, "--help")
	}
	status, out := run(t, dir, argv...)
	misuse := status == 10 || status == 99 || strings.Contains(out, "unknown command") || strings.Contains(out, "unknown flag")
	for _, none := range []string{
		"no port of an adapter in the input", "no record of it on node", "missing argument: want", "add --all to do that",
		"report: there is no event", "run sinfo: ", "run sacctmgr: ", "run squeue: ",
		"no run of the last 30 days reported it", "is not silenced on this node", "this time has passed", "this node has no such device", "this node has no GPU, adapter or NVMe disk",
	} { // a name alone; a question; no Slurm; no finding, or an example's date
		misuse = misuse && !strings.Contains(out, none)
	}
	if misuse || status < 0 {
		t.Errorf("%s: %s: status %d\n%s", name, text, status, out)
	}
}

var exampleLine = regexp.MustCompile(`^\s*(?:nhc\.conf:\s+)?(?:!?[a-z*][^\s()]*|\{[^|]*\}|/\S+/)\s+\|\|\s+(.+)$`)

// Every line of nhc.conf in the documents is one that nhc-gpu plan understands.
func TestLinesOfNHCConf(t *testing.T) {
	t.Parallel()
	dir := sandbox(t)
	var conf strings.Builder
	count := 0
	for name, p := range readPages(t) {
		for _, b := range p.blocks() {
			if strings.Contains(b, "function check_") {
				write(t, dir+"/etc/nhc/scripts/site.nhc", b)
				continue
			}
			for line := range strings.Lines(b) {
				if m := exampleLine.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil && !strings.Contains(m[1], "...") {
					count++
					fmt.Fprintf(&conf, "# %s\n* || %s\n", name, m[1])
				}
			}
		}
	}
	if count < 60 {
		t.Errorf("only %d lines", count)
	}
	write(t, dir+"/etc/nhc/nhc.conf", conf.String())
	status, out := run(t, dir, "nhc-gpu", "plan", "CONFDIR="+dir+"/etc/nhc", "HOSTROOT="+dir+"/root")
	for line := range strings.Lines(out) {
		if strings.Contains(line, "!!") {
			t.Errorf("%s", line)
		}
	}
	if status != 0 && !t.Failed() {
		t.Errorf("status %d\n%s", status, out)
	}
}

// files are the files of TOML by what only they have, with the setting that names one.
var files = []struct {
	has     *regexp.Regexp
	setting string
}{
	{regexp.MustCompile(`(?m)^\[\[scenario\]\]`), ""},
	{regexp.MustCompile(`(?m)^\[\[platform`), "PLATFORM_PROFILES"},
	{regexp.MustCompile(`(?m)^(\[\[s?xid\]\]|\[class\.)`), "XID_POLICY"},
	{regexp.MustCompile(`(?m)^\[\[counter\]\]`), "IB_COUNTERS"},
	{regexp.MustCompile(`(?m)^\[\[error\]\]`), "DCGM_ERRORS"},
	{regexp.MustCompile(`(?m)^\[(\[check\]|policy|prolog|epilog|healthcheck|active|output)`), "TOMLFILE"},
}

// Every example of a TOML file in the documents is one that the program reads without an
// error.
func TestTOMLExamples(t *testing.T) {
	t.Parallel()
	dir := sandbox(t)
	seen := map[string]int{}
	for name, p := range readPages(t) {
		for _, b := range p.blocks() {
			for _, f := range files {
				if !f.has.MatchString(b) {
					continue
				}
				seen[f.setting]++
				file := fmt.Sprintf("%s/example%d.toml", dir, len(seen)*100+seen[f.setting])
				write(t, file, b)
				argv := []string{"nhc-gpu", "lint", "CONFDIR=" + dir + "/etc/nhc", "HOSTROOT=" + dir + "/root", f.setting + "=" + file}
				if f.setting == "" {
					argv = []string{"nhc-gpu", "selftest", "--file", file}
				}
				status, out := run(t, dir, argv...)
				wrong := regexp.MustCompile(`(?m)^(` + file + `:|error).*`)
				if f.setting == "" && status != 0 || f.setting != "" && wrong.MatchString(out) {
					t.Errorf("%s: status %d\n%s\n%s", name, status, out, b)
				}
				break
			}
		}
	}
	for _, f := range files {
		if seen[f.setting] == 0 {
			t.Errorf("no example of a file of %s", f.setting)
		}
	}
}

const screenMark = "<!-- The beginning of the second screen of docs/check-output.md. -->\n"

// README.md has the number of built-in checks, and shows how the output of --check on a faulty node
// begins.
func TestReadme(t *testing.T) {
	t.Parallel()
	pages := readPages(t)
	blocks := pages["docs/check-output.md"].blocks()
	if len(blocks) < 2 {
		t.Fatalf("docs/check-output.md has %d screens", len(blocks))
	}
	screen, _, ok := strings.Cut(blocks[1], "\n\n ok ")
	if !ok || !strings.Contains(screen, "fail ") {
		t.Fatalf("no failures in the second screen:\n%s", blocks[1])
	}
	want := screenMark + "\n    " + strings.ReplaceAll(strings.ReplaceAll(screen, "\n", "\n    "), "\n    \n", "\n\n") + "\n"
	readme := string(pages["README.md"].text)
	before, rest, ok := strings.Cut(readme, screenMark)
	_, after, ok2 := strings.Cut(rest, "\n## ")
	if !ok || !ok2 {
		t.Fatalf("README.md has no %q", screenMark)
	}
	if written := before + want + "\n## " + after; os.Getenv("NHC_GPU_WRITE") == "docs" {
		if err := os.WriteFile(root+"/README.md", []byte(written), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if diff := cmp.Diff(written, readme); diff != "" {
		t.Errorf("README.md; NHC_GPU_WRITE=docs go test ./tests/docs -run Readme writes it (-want +got):\n%s", diff)
	}
	_, list := run(t, t.TempDir(), "nhc-gpu", "checks")
	if want := fmt.Sprintf("| built-in checks | %d names,", strings.Count(list, "\n  check_")); !strings.Contains(readme, want) {
		t.Errorf("README.md has no %q", want)
	}
	if n := strings.Count(readme, "\n"); n > 120 {
		t.Errorf("README.md has %d lines, want at most 120", n)
	}
}
