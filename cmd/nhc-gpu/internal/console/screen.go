package console

import (
	"fmt"
	"os"

	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
)

// plain writes text to a standard descriptor, with nothing in it that does not print.
// All text goes through it or through a Writer; JSON, which is for programs, does not.
type plain struct{ file *os.File }

func (p plain) Write(data []byte) (int, error) {
	if _, err := p.file.WriteString(verdict.Printable(string(data))); err != nil {
		return 0, err
	}
	return len(data), nil
}

// Screen waits for its reader without a limit: it is for what a person asked for. Alerts is
// for errors that end the program, and for a crash.
var (
	Screen = plain{os.Stdout}
	Alerts = newAlerts()
)

// Counted is a number of things, in words.
func Counted(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprint(n, " ", thing)
}
