package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nhc-gpu/nhc-gpu/checks/run"
)

var update = flag.Bool("u", false, "rewrite the expected output in the scripts")

// The test binary is the program, and its worker.
func TestMain(m *testing.M) {
	program := func() {
		if mail := os.Getenv("TEST_MAIL"); mail != "" { // no test sends mail
			mailPrograms = []string{"/nonexistent/mail", mail}
		}
		os.Exit(guarded(os.Args))
	}
	testscript.Main(m, map[string]func(){
		"nhc-gpu": program, "nhc": program, "nhc-detached": program, "nhc-cron": program, run.WorkerName: program,
		"node-mark-offline": program, "node-mark-online": program, "nhc-genconf": program, "nhc-cron-genconf": program,
		"nhc-wrapper": program, "site-wrapper": program,
	})
}

// TestScript runs the whole program: one behaviour a file, exit status and
// exact text.
func TestScript(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:           "../../tests/script",
		UpdateScripts: *update,
		Setup: func(e *testscript.Env) error {
			// What the machine has for Slurm is not these tests' concern.
			e.Setenv("MARK_OFFLINE", "0")
			path, err := exec.LookPath("nhc-gpu")
			e.Setenv("nhc", path)
			e.Setenv("bin", filepath.Dir(path))
			return err
		},
		Condition: func(cond string) (bool, error) {
			return cond == "root" && os.Geteuid() == 0, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
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
