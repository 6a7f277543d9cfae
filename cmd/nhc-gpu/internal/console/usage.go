package console

import (
	"errors"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// OptionError returns LBNL NHC's text for an error of Getopts.
func OptionError(err error) string {
	usage, ok := errors.AsType[*checks.UsageError](err)
	switch {
	case !ok:
		return err.Error()
	case usage.Kind == checks.NoArgument:
		return "Option -" + usage.Word + " requires an argument."
	case usage.Kind == checks.BadOption:
		return "Invalid option:  -" + usage.Word
	}
	return usage.Error()
}
