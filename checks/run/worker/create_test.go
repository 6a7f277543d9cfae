package worker

import (
	_ "github.com/nhc-gpu/nhc-gpu/checks/all"

	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

func TestCreate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "nhc.conf.auto")
	if resp := create(path, []byte("first\n")); resp.Err != "" {
		t.Fatal(resp.Err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != createdMode {
		t.Errorf("%v, %v, want mode %v", info.Mode(), err, os.FileMode(createdMode))
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "nowhere"), link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, link} {
		if resp := create(name, []byte("second\n")); resp.Err != "write "+name+": the file exists" || resp.Kind != wire.Exists {
			t.Errorf("%s: %+v", name, resp)
		}
	}
	if resp := create(dir, []byte("second\n")); resp.Err != "write "+dir+": is a directory; name a file" || resp.Kind != 0 {
		t.Errorf("a directory: %+v", resp)
	}
	if resp := create(filepath.Join(dir, "no/file"), nil); resp.Err != "write "+dir+"/no/file: no such file or directory" || resp.Kind != wire.NoDirectory {
		t.Errorf("no directory: %+v", resp)
	}
	if data, err := os.ReadFile(path); string(data) != "first\n" {
		t.Errorf("%q, %v", data, err)
	}
	left, _ := filepath.Glob(dir + "/.*")
	if len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
}

// TestRenameNew checks that of two concurrent writers of the same name the second one fails.
func TestRenameNew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := renameNew(dir+"/a", dir+"/c"); err != nil {
		t.Fatal(err)
	}
	if err := renameNew(dir+"/b", dir+"/c"); !errors.Is(err, unix.EEXIST) {
		t.Errorf("second: %v", err)
	}
	if data, _ := os.ReadFile(dir + "/c"); string(data) != "a" {
		t.Errorf("%q", data)
	}
}
