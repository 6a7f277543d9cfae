package lbnl

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// dir is {DIR}: a case's own directory, with the same name for all, because each sees only its own.
// The scripts in testdata name it, too.
const dir = "/tmp/nhco"

// caseLimit bounds a case from outside, including its setup.
const caseLimit = 2 * time.Minute

// namespaces are the namespaces that a case does not share.
const namespaces = syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWPID |
	syscall.CLONE_NEWNET

// report is the result of process 1 of a case.
type report struct {
	Outcome  outcome
	Wall     time.Duration
	TimedOut bool
	Err      string // why there is no outcome
}

// box runs cases against one program.
type box struct {
	values *strings.Replacer // {BIN} and so on to their values
	names  *strings.Replacer // and back
}

// newBox creates in tmp the files that all cases share: an empty directory of site scripts, and the
// node-mark-* commands.
func newBox(tmp, bin string) (*box, error) {
	inc, helpers := filepath.Join(tmp, "scripts"), filepath.Join(tmp, "helpers")
	for _, d := range []string{inc, helpers, dir, base} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"node-mark-offline", "node-mark-online"} {
		if err := os.Symlink(bin, filepath.Join(helpers, name)); err != nil {
			return nil, err
		}
	}
	return &box{
		values: strings.NewReplacer("{BIN}", bin, "{DIR}", dir, "{INCDIR}", inc, "{HELPERDIR}", helpers),
		names:  strings.NewReplacer(bin, "{BIN}", inc, "{INCDIR}", helpers, "{HELPERDIR}", dir, "{DIR}"),
	}, nil
}

// try runs a case and judges its outcome.
func (b *box) try(ctx context.Context, c *recorded) ([]fault, error) {
	r, err := b.play(ctx, c.scene)
	if err != nil {
		return nil, err
	}
	got := r.Outcome
	got.Files = make(map[string]string, len(c.Collect))
	for _, path := range c.Collect {
		got.Files[path] = r.Outcome.Files[b.values.Replace(path)]
	}
	faults := c.judge(c.normalise(got, b.names), r.Wall)
	if r.TimedOut {
		faults = append(faults, fault{"time", fmt.Sprintf("killed after %v", programLimit)})
	}
	return faults, nil
}

// play runs a scene in its own namespaces, by a process 1 that is this test binary.
func (b *box) play(ctx context.Context, s scene) (*report, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, caseLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{initName}
	cmd.Env = []string{"GOMAXPROCS=1", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", devicesSetting + "=" + os.Getenv(devicesSetting)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Setsid: true}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.WaitDelay = time.Second
	stdin, err := cmd.StdinPipe() // stays open: process 1 ends when it closes, at the latest with this process
	if err != nil {
		return nil, err
	}
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer pr.Close()
	cmd.ExtraFiles = []*os.File{pw}
	err = cmd.Start()
	pw.Close()
	if err != nil {
		return nil, fmt.Errorf("start process 1: %w", err)
	}
	_, writeErr := stdin.Write([]byte(b.values.Replace(string(text))))
	var r report
	readErr := gob.NewDecoder(pr).Decode(&r)
	waitErr := cmd.Wait()
	switch {
	case readErr != nil:
		return nil, fmt.Errorf("no report: %w\n%s", errors.Join(writeErr, readErr, waitErr, ctx.Err()), &stderr)
	case r.Err != "":
		return nil, errors.New(r.Err)
	}
	return &r, nil
}
