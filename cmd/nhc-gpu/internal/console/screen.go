package console

import (
	"fmt"
	"os"

	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
)

// plain writes text to a standard descriptor, without characters that do not print. All text goes
// through it or through a Writer; JSON, which is for programs, does not.
type plain struct {
	file *os.File
	err  error
}

func (p *plain) Write(data []byte) (int, error) {
	if _, err := p.file.WriteString(verdict.Printable(string(data))); err != nil {
		p.err = err
		return 0, err
	}
	return len(data), nil
}

// Err returns the error of the last write that failed.
func (p *plain) Err() error { return p.err }

// Screen prints the output of a command, and waits for its reader without a limit. Alerts prints
// errors that end the program, and crashes.
var (
	Screen = &plain{file: os.Stdout}
	Alerts = newAlerts()
)

// Counted returns a number with the name of the things: "2 runs".
func Counted(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprint(n, " ", thing)
}
