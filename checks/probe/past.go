package probe

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// What one run keeps for the next, so that a counter can be judged by how fast
// it grows: a file of JSON for each subject in a directory of root's.

// ErrNoMemory says that nothing can be kept between runs: there is no directory
// for it, as in a run of somebody else than root.
var ErrNoMemory = errors.New("nothing is kept between runs")

// SetPast names the directory of what runs keep; "" is none. It is below the
// root of the node.
func (h *Host) SetPast(dir string) { h.past = dir }

// maxPast bounds one file, bytes. Ours are a few KiB.
const maxPast = 4 << 20

// Recall reads what an earlier run has kept under name. The error is
// [fs.ErrNotExist] if there is nothing, [ErrNoMemory] if there cannot be.
func (h *Host) Recall(name string, v any) error {
	if h.past == "" {
		return ErrNoMemory
	}
	data, err := h.keptFile(name + ".json")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("read %s: %w", filepath.Join(h.past, name+".json"), err)
	}
	return nil
}

// Keep writes v for later runs, all of it or nothing, readable by root alone.
func (h *Host) Keep(name string, v any) error {
	if h.past == "" {
		return ErrNoMemory
	}
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	dir := h.Path(h.past)
	path := filepath.Join(h.past, name+".json")
	fail := func(err error) error { return &fs.PathError{Op: "write", Path: path, Err: reason(err)} }
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fail(err)
	}
	f, err := os.CreateTemp(dir, name+".*.new") // 0600, new, no link
	if err != nil {
		return fail(err)
	}
	_, err = f.Write(data)
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(f.Name(), h.Path(path))
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fail(err)
	}
	return nil
}
