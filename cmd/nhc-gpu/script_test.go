package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/wrap"
	"github.com/nhc-gpu/nhc-gpu/tests/fakecuda"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenccl"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
	"github.com/nhc-gpu/nhc-gpu/tests/schema"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

var update = flag.Bool("u", false, "rewrite the expected output in the scripts")

// The test binary is the program, and its worker.
func TestMain(m *testing.M) {
	program := func() {
		if mail := os.Getenv("TEST_MAIL"); mail != "" { // no test sends mail
			wrap.MailPrograms = []string{"/nonexistent/mail", mail}
		}
		if file := os.Getenv("TEST_PANIC"); file != "" {
			go panicAfter(file)
		}
		main()
	}
	testscript.Main(m, map[string]func(){
		"nhc-gpu": program, "nhc-gpu.new": program, "nhc-gpu.new-genconf": program, "nhc": program, "nhc-detached": program, "nhc-cron": program, wire.WorkerName: program,
		"node-mark-offline": program, "node-mark-online": program, "nhc-genconf": program, "nhc-cron-genconf": program,
		"nhc-wrapper": program, "site-wrapper": program,
	})
}

// panicAfter panics as soon as a file exists: in a goroutine that [run.Go] has started if the file is
// empty, or else in this one, as a library could.
func panicAfter(file string) {
	for ; ; time.Sleep(5 * time.Millisecond) {
		switch text, err := os.ReadFile(file); {
		case err == nil && len(text) == 0:
			run.Go(func() { panic("rogue") })
			return
		case err == nil:
			panic("rogue")
		}
	}
}

// fakeNVML DIR MODEL N [LINE...] makes a node with N GPUs: DIR/libnvidia-ml.so.1
// and its files below DIR/root. The lines change its scenario.
func fakeNVML(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: fakenvml DIR MODEL N [LINE...]")
	}
	gpus, err := strconv.Atoi(args[2])
	ts.Check(err)
	dir, model := ts.MkAbs(args[0]), fakenvml.Model(args[1])
	_, err = fakenvml.Place(dir, fakenvml.Scenario(model, gpus, args[3:]...))
	ts.Check(err)
	ts.Check(fakenvml.Write(filepath.Join(dir, "root"), fakenvml.Files(model, gpus)))
}

// fakeGPUs DIR N [LINE...] makes a node with N GPUs that compute: DIR/libnvidia-ml.so.1,
// DIR/libcuda.so.1 and DIR/libnccl.so.2. The lines change what CUDA does.
func fakeGPUs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: fakegpus DIR N [LINE...]")
	}
	gpus, err := strconv.Atoi(args[1])
	ts.Check(err)
	_, err = fakenvml.Place(ts.MkAbs(args[0]), fakenvml.Scenario(fakenvml.H100, gpus))
	ts.Check(err)
	_, err = fakecuda.Place(ts.MkAbs(args[0]), fakecuda.Scenario(gpus, args[2:]...))
	ts.Check(err)
	_, err = fakenccl.Place(ts.MkAbs(args[0]), "")
	ts.Check(err)
}

// fakeSys DIR NODE makes the /sys and /proc of a node.
func fakeSys(ts *testscript.TestScript, neg bool, args []string) {
	nodes := map[string]func() *fakesys.Node{
		"dgx-h100": fakesys.DGXH100, "dgx-h200": fakesys.DGXH200, "nd-h100-v5": fakesys.NDH100v5, "gb200": fakesys.GB200, "cx8": fakesys.CX8, "roce": fakesys.RoCE, "empty": fakesys.New,
	}
	if neg || len(args) != 2 || nodes[args[1]] == nil {
		ts.Fatalf("usage: fakesys DIR NODE")
	}
	ts.Check(nodes[args[1]]().Write(ts.MkAbs(args[0])))
}

// checkEvents FILE [N]: the file has N events, or some, one in each line; stdout is a file, too.
func checkEvents(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 || len(args) > 2 {
		ts.Fatalf("usage: events FILE [N]")
	}
	n := 0
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		n++
		ts.Check(schema.Check([]byte(line)))
	}
	if n == 0 || len(args) == 2 && args[1] != strconv.Itoa(n) {
		ts.Fatalf("%d events in %s, want %v", n, args[0], args[1:])
	}
}

// TestScript runs the whole program: one behaviour a file, exit status and
// exact text.
func TestScript(t *testing.T) {
	t.Parallel()
	runScripts(t, "../../tests/script")
}

// TestAllScripts runs those that take too long for make test.
func TestAllScripts(t *testing.T) {
	tier.All(t)
	t.Parallel()
	runScripts(t, "../../tests/script/all")
}

// checkStoredEvents validates the last events and the histories that scripts have left.
func checkStoredEvents(t *testing.T) {
	t.Helper()
	var scripts string
	quick, _ := filepath.Glob("../../tests/script/*.txtar")
	slow, _ := filepath.Glob("../../tests/script/all/*.txtar")
	for _, path := range slices.Concat(quick, slow) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		scripts += string(text)
	}
	for _, kind := range []string{"run-*.json", "history.jsonl"} {
		files, _ := filepath.Glob("/var/lib/nhc-gpu/script-*/" + kind)
		for _, file := range files {
			if !strings.Contains(scripts, filepath.Base(filepath.Dir(file))) { // of another version of this program
				continue
			}
			data, err := os.ReadFile(file)
			if err != nil {
				t.Error(err)
			}
			for line := range strings.Lines(string(data)) {
				if err := schema.Check([]byte(line)); err != nil {
					t.Errorf("%s: %v", file, err)
				}
			}
		}
	}
}

func runScripts(t *testing.T, dir string) {
	t.Helper()
	t.Cleanup(func() { checkStoredEvents(t) })
	testscript.Run(t, testscript.Params{
		Dir:           dir,
		UpdateScripts: *update,
		Setup: func(e *testscript.Env) error {
			// These tests do not depend on Slurm of this machine.
			e.Setenv("MARK_OFFLINE", "0")
			path, err := exec.LookPath("nhc-gpu")
			e.Setenv("nhc", path)
			e.Setenv("bin", filepath.Dir(path))
			examples, wrong := filepath.Abs("../../conf/examples")
			e.Setenv("examples", examples)
			scripts, bad := filepath.Abs("../../slurm")
			e.Setenv("scripts", scripts)
			return errors.Join(err, wrong, bad)
		},
		Condition: func(cond string) (bool, error) {
			switch {
			case cond == "gcc" && need.Has("gcc"), cond == "root" && os.Geteuid() == 0:
				return true, nil
			case need.InCI():
				return false, fmt.Errorf("CI must not skip this test: it needs %s", cond)
			}
			return false, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"fakenvml": fakeNVML,
			"fakegpus": fakeGPUs,
			"fakesys":  fakeSys,
			"helps":    printHelps,
			"registry": printRegistry,
			"events":   checkEvents,
			// status N PROGRAM ARG...: the program ends with that status.
			"status": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 2 {
					ts.Fatalf("usage: status N PROGRAM ARG...")
				}
				err := ts.Exec(args[1], args[2:]...)
				got := "0"
				if err != nil {
					got = strings.TrimPrefix(err.Error(), "exit status ")
				}
				if got != args[0] {
					ts.Fatalf("%s: exit status %s, want %s", strings.Join(args[1:], " "), got, args[0])
				}
			},
		},
	})
}
