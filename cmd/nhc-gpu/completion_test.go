package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

const bashCompletion = "/usr/share/bash-completion/bash_completion"

// A person types a part of a word and the Tab key in bash, at a terminal.
func TestCompletionInBash(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat(bashCompletion); err != nil {
		need.Skip(t, "no bash-completion: tests/install-deps.sh installs it")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := programDir(t, self)
	script, err := exec.Command(filepath.Join(dir, "nhc-gpu"), "completion", "bash").Output()
	if err != nil {
		t.Fatal(err)
	}
	rc := filepath.Join(dir, "rc")
	setUp := "PS1='> '; PATH=" + dir + ":/usr/bin:/bin; bind 'set bell-style none'; bind 'set show-all-if-ambiguous on'; bind 'set page-completions off'\n" +
		"bind 'set enable-bracketed-paste off'\n. " + bashCompletion + "\n"
	if err := os.WriteFile(rc, append([]byte(setUp), script...), 0o644); err != nil {
		t.Fatal(err)
	}
	for typed, want := range map[string][]string{
		"nhc-gpu pla":                                  {"plan ", "platforms "},
		"nhc-gpu sel":                                  {"nhc-gpu selftest "},
		"nhc-gpu explain check_gpu_ec":                 {"nhc-gpu explain check_gpu_ecc "},
		"nhc-gpu explain gpu.recovery.l":               {"nhc-gpu explain gpu.recovery.lost "},
		"nhc-gpu check -v check_fs_mount_r":            {"check_fs_mount_ro", "check_fs_mount_rw"},
		"nhc-gpu checks fa":                            {"nhc-gpu checks fabric "},
		"nhc-gpu platforms GB3":                        {"nhc-gpu platforms GB300"},
		"nhc-gpu selftest check_gpu_ecc check_gpu_pow": {"nhc-gpu selftest check_gpu_ecc check_gpu_power "},
		"nhc-gpu clear --active check_gpu_gem":         {"nhc-gpu clear --active check_gpu_gemm "},
		"nhc-gpu help com":                             {"nhc-gpu help completion "},
		"nhc-gpu --che":                                {"nhc-gpu --check "},
	} {
		t.Run(typed, func(t *testing.T) {
			t.Parallel()
			person, program := terminal(t, 200)
			cmd := exec.Command("bash", "--noprofile", "--rcfile", rc, "-i")
			cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
			cmd.Env = []string{"TERM=dumb", "HOME=" + dir, "HISTFILE="}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			program.Close()
			defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
			saw, seen := make(chan string), ""
			go func() {
				buf := make([]byte, 4096)
				for {
					n, err := person.Read(buf)
					if err != nil {
						close(saw)
						return
					}
					saw <- string(buf[:n])
				}
			}()
			until := func(wanted ...string) {
				t.Helper()
				limit := time.After(time.Minute)
				for {
					missing := ""
					for _, w := range wanted {
						if !strings.Contains(seen, w) {
							missing = w
						}
					}
					if missing == "" {
						return
					}
					select {
					case text, ok := <-saw:
						if !ok {
							t.Fatalf("want %q, bash has ended: %q", missing, seen)
						}
						seen += text
					case <-limit:
						t.Fatalf("want %q, saw %q", missing, seen)
					}
				}
			}
			until("> ")
			seen = ""
			if _, err := person.WriteString(typed + "\t"); err != nil {
				t.Fatal(err)
			}
			until(want...)
		})
	}
}
