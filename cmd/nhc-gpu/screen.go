package main

import (
	"os"

	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
)

// plain writes text to a standard descriptor, with nothing in it that does not print.
// All text goes through it or through console; JSON, which is for programs, does not.
type plain struct{ file *os.File }

func (p plain) Write(data []byte) (int, error) {
	if _, err := p.file.WriteString(verdict.Printable(string(data))); err != nil {
		return 0, err
	}
	return len(data), nil
}

var (
	screen = plain{os.Stdout}
	alerts = plain{os.Stderr}
)
