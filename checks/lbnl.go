package checks

import (
	"math/big"
	"strings"
)

// What the checks of LBNL NHC have in common: their texts, and how they look
// at words and paths.

// WrongOption renders an option error after the name that LBNL NHC puts before it.
func WrongOption(name string, err *UsageError) Finding {
	var text string
	switch err.Kind {
	case BadOption:
		text = "Invalid option:  -" + err.Word
	case NoArgument:
		text = "Option -" + err.Word + " requires an argument."
	default:
		text = "Syntax error:  " + err.Error()
	}
	if err.Name != "" {
		name = err.Name
	}
	return Usage(name+":  "+text, err.Want)
}

// UsageOf is the BadUsage of a check whose option errors begin with its name.
func UsageOf(name string) func(string, *UsageError) Finding {
	return func(_ string, err *UsageError) Finding { return WrongOption(name, err) }
}

// Usage is the failure of a check that was given the wrong words.
func Usage(message, want string) Finding {
	return Finding{Code: "config.usage", Severity: Fail, Message: message, Want: want, Remedy: FixConfig}
}

// NumberLimits reads limits; nil is one that is not given.
func NumberLimits(check string, words ...string) ([]*big.Rat, *Finding) {
	limits := make([]*big.Rat, len(words))
	for i, w := range words {
		if w == "" {
			continue
		}
		limit, ok := ParseNumber(w)
		if !ok {
			bad := WrongValue(check, "limit", w, "a number")
			return nil, &bad
		}
		limits[i] = limit
	}
	return limits, nil
}

// Should says in LBNL's words what a match string demands.
func Should(expr string) string {
	if rest, not := strings.CutPrefix(expr, "!"); not {
		return "should NOT match " + rest
	}
	return "should match " + expr
}
