package checks

import (
	"math/big"
	"strings"
)

// This file holds the texts and the parsing of arguments that the checks of LBNL NHC share.

// WrongOption returns the finding of an option error. Its message begins with name, as in LBNL NHC.
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

// UsageOf returns the BadUsage of a check that begins its option errors with its name.
func UsageOf(name string) func(string, *UsageError) Finding {
	return func(_ string, err *UsageError) Finding { return WrongOption(name, err) }
}

// Usage returns the failure of a check with wrong arguments.
func Usage(message, want string) Finding {
	return Finding{Code: "config.usage", Severity: Fail, Message: message, Want: want, Remedy: FixConfig}
}

// NumberLimits parses limits. An empty word gives nil.
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

// Should returns LBNL's text for a match string.
func Should(expr string) string {
	if rest, not := strings.CutPrefix(expr, "!"); not {
		return "should NOT match " + rest
	}
	return "should match " + expr
}
