package main

import (
	"os"
	"time"

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
	alerts = newAlerts()
)

// newAlerts writes errors that end the program, and a crash. A reader that does not read
// must not keep slurmd from the exit status.
func newAlerts() *console {
	c := &console{fd: 2, wake: -1}
	c.until(time.Now().Add(alertsLimit))
	return c
}

const alertsLimit = 8 * time.Second
