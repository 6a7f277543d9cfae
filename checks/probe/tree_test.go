package probe

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// tree makes a node of files and returns its directory. A name that ends in a slash is a
// directory.
func tree(t testing.TB, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if strings.HasSuffix(name, "/") {
			mkdir(t, path)
			continue
		}
		mkdir(t, filepath.Dir(path))
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func mkdir(t testing.TB, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

// message is the text of an error, "" of none.
func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// writeProgram writes a program that a test is going to run. No process is started
// meanwhile: a child has a copy of the file, open for writing, until it runs its own program,
// and a file that is open for writing cannot be run ("text file busy").
func writeProgram(path string, data []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, data, 0o755)
}

// startSleep starts a process that can be killed.
func startSleep(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
	})
	line := "/proc/" + strconv.Itoa(cmd.Process.Pid) + "/cmdline" // it comes last, after the name
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if text, _ := os.ReadFile(line); bytes.Equal(text, []byte("sleep\x0060\x00")) {
			return cmd
		}
	}
	t.Fatal("sleep does not start")
	return nil
}

// await waits until something holds.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
	}
}
