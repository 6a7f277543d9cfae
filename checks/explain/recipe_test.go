package explain

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/tests/built"
)

// recipeInput is the input of a recipe, and that of a node with the fault. A name with a slash is a file, any other a
// program, which prints the input; an input of "exit N" is its exit status.
type recipeInput struct {
	from, healthy, faulty string
}

const cpuGovernor = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"

var recipeInputs = map[string]recipeInput{
	"software RAID (md)": {
		"/proc/mdstat",
		"Personalities : [raid1]\nmd0 : active raid1 nvme1n1p2[1] nvme0n1p2[0]\n      937371648 blocks super 1.2 [2/2] [UU]\n      bitmap: 2/7 pages [8KB], 65536KB chunk\n\nunused devices: <none>\n",
		"Personalities : [raid1]\nmd0 : active raid1 nvme1n1p2[1](F) nvme0n1p2[0]\n      937371648 blocks super 1.2 [2/1] [U_]\n\nunused devices: <none>\n",
	},
	"clock source of the kernel":                  {"/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n", "hpet\n"},
	"clock that is not synchronised (chrony)":     {"chronyc", "Stratum         : 3\nLeap status     : Normal\n", "Stratum         : 0\nLeap status     : Not synchronised\n"},
	"clock that is not synchronised (any daemon)": {"timedatectl", "NTP=yes\nNTPSynchronized=yes\n", "NTP=yes\nNTPSynchronized=no\n"},
	"option of the kernel's command line":         {"/proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/md0 ro iommu=pt quiet\n", "BOOT_IMAGE=/vmlinuz root=/dev/md0 ro quiet\n"},
	"version of the kernel":                       {"/proc/sys/kernel/osrelease", "5.14.0-503.15.1.el9_5.x86_64\n", "5.14.0-427.el9.x86_64\n"},
	"setting of the kernel (sysctl)":              {"/proc/sys/kernel/numa_balancing", "0\n", "1\n"},
	"governor of the CPUs":                        {cpuGovernor, "performance\n", "powersave\n"},
	"limit of locked memory":                      {"/proc/self/limits", "Max locked memory         unlimited            unlimited            bytes     \n", "Max locked memory         8388608              8388608              bytes     \n"},
	"installed package (rpm)":                     {"rpm", "nvidia-fabricmanager-570.148.08-1.x86_64\n", "exit 1"},
	"installed package (dpkg)":                    {"dpkg-query", "ii  1:3.3.9\n", "iU  1:3.3.9\n"},
	"SMART of a SATA or SAS disk":                 {"smartctl", "SMART overall-health self-assessment test result: PASSED\n", "SMART overall-health self-assessment test result: FAILED!\n"},
	"event log of the BMC (SEL)":                  {"ipmitool", "   1 | 11/20/2026 | 03:04:05 | Event Logging Disabled #0x72 | Log area reset/cleared | Asserted\n", "   2 | 11/21/2026 | 03:04:05 | Memory #0x53 | Uncorrectable ECC | Asserted\n"},
	"power supplies":                              {"ipmitool", "PS1 Status       | C8h | ok  | 10.1 | Presence detected\n", "PS2 Status       | C9h | ok  | 10.2 | Presence detected, Failure detected, Power Supply AC lost\n"},
	"zombies":                                     {"ps", "S\nZ\nR\n", strings.Repeat("Z\n", 120)},
	"CUDA library that is missing or empty":       {"/usr/lib64/libcuda.so.1", "\x7fELF", ""},
}

// Every recipe is a line that nhc-gpu plans as it is shown. It passes on a healthy input and fails on that of the
// fault. This machine has none of the things: the files and programs are simulated.
func TestRecipes(t *testing.T) {
	t.Parallel()
	if len(recipeInputs) != len(recipes()) {
		t.Errorf("%d recipes, inputs of %d", len(recipes()), len(recipeInputs))
	}
	for _, r := range recipes() {
		in, ok := recipeInputs[r.About]
		if !ok || r.Words == "" || r.Catches == "" {
			t.Errorf("%+v: want words, the fault that it finds, and an input in this test", r)
			continue
		}
		if got := worstOf(t, &r, in.from, in.healthy); got > checks.OK {
			t.Errorf("%s: %s on a healthy input", r.Line, got)
		}
		if got := worstOf(t, &r, in.from, in.faulty); got != checks.Fail {
			t.Errorf("%s: %s on a fault, want fail", r.Line, got)
		}
	}
}

// worstOf runs the line of a recipe on an input.
func worstOf(t *testing.T, r *recipe, from, input string) checks.Severity {
	t.Helper()
	root := t.TempDir()
	lines, warnings, err := conf.Parse("nhc.conf", []byte(r.Line+"\n"))
	if err != nil || len(warnings) > 0 || len(lines) != 1 {
		t.Fatalf("%s: %v, %v", r.Line, warnings, err)
	}
	p := plan.Build(lines, plan.Options{})
	if len(p.Steps) != 1 || p.Steps[0].Kind != plan.Native || p.Steps[0].Usage != nil || p.Problems.ErrorOrNil() != nil {
		t.Fatalf("%s: not a line of a built-in check alone: %+v", r.Line, p)
	}
	file := filepath.Join(root, from)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	isProgram := !strings.Contains(from, "/")
	if isProgram {
		script := input
		if !strings.HasPrefix(input, "exit ") {
			script = "cat <<'END'\n" + input + "END"
		}
		err = built.WriteProgram(file, []byte("#!/bin/sh\n"+script+"\n"))
	} else {
		err = os.WriteFile(file, []byte(input), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	var args []string
	for _, w := range p.Steps[0].Args {
		if first, rest, _ := strings.Cut(w, " "); isProgram && first == from {
			w = strings.TrimSpace(file + " " + rest)
		}
		args = append(args, w)
	}
	info, _ := checks.Lookup(p.Steps[0].Name)
	c := info.New()
	if err := checks.Bind(c, args); err != nil {
		t.Fatalf("%s: %v", r.Line, err)
	}
	if isProgram { // it runs on this machine
		root = "/"
	}
	found := c.Run(t.Context(), &checks.Env{Host: probe.NewHost(root), Doing: func(string) {}})
	for _, f := range found {
		t.Logf("%s: %s", r.About, f.Message)
	}
	return checks.Worst(found)
}

// A word finds the recipes, also one that is near the name of a check.
func TestExplainRecipes(t *testing.T) {
	t.Parallel()
	env := checktest.ExplainEnv(t, nil)
	for word, want := range map[string]string{
		"raid": "/proc/mdstat", "mdadm": "/proc/mdstat", "md": "/proc/mdstat", "chrony": "chronyc -n tracking", "clocksource": "current_clocksource", "cmdline": "/proc/cmdline",
		"SEL": "ipmitool sel elist", "ulimit": "Max locked memory", "packages": "dpkg-query", "smartctl": "smartctl -H", "zombies": "grep -c ^Z", "governor": "scaling_governor",
		"ipmi": "Power Supply", "libcuda": "libcuda.so.1",
	} {
		if got, err := Explain(env, word); err != nil || !strings.Contains(got, want) {
			t.Errorf("%q: %v, want %q in\n%s", word, err, want, got)
		}
	}
}

// docs/recipes.md has the recipes.
func TestRecipePage(t *testing.T) {
	t.Parallel()
	const head, tail, write = "## The recipes\n\n", "## Things that no line can read\n", "NHC_GPU_WRITE=docs go test ./checks/explain -run RecipePage"
	path := checktest.FromRoot(t, "docs/recipes.md")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), head)
	_, after, ok2 := strings.Cut(rest, tail)
	if !ok || !ok2 {
		t.Fatalf("%s: no %q or no %q", path, head, tail)
	}
	var page strings.Builder
	page.WriteString(before + head + "<!-- " + write + " writes this part. -->\n\n")
	for _, r := range recipes() {
		fmt.Fprintf(&page, "### %s%s\n\n    %s\n\n%s\n", strings.ToUpper(r.About[:1]), r.About[1:], r.Line, filled("Finds "+r.Catches+"."))
	}
	page.WriteString(tail + after)
	if os.Getenv(checktest.WriteSetting) == "docs" {
		if err := os.WriteFile(path, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(page.String(), string(data)); diff != "" {
		t.Errorf("%s is not what the table says; %s writes it (-want +got):\n%s", path, write, diff)
	}
}

// filled breaks a text into lines of a page.
func filled(text string) string {
	const columns = 100
	var b strings.Builder
	line := ""
	for w := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(w) > columns {
			b.WriteString(line + "\n")
			line = ""
		}
		line = strings.TrimSpace(line + " " + w)
	}
	return b.String() + line + "\n"
}
