package packaging_test

import (
	"fmt"
	"os"
	"testing"
)

// scratch is the directory of all that several tests share.
var scratch string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "nhc-gpu-packaging-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	scratch = dir
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}
