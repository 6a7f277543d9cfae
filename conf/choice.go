package conf

import (
	"fmt"
	"slices"
	"strings"
)

// Settings with one value of few. SettingMode says whether decisions are carried out, the
// default, or only logged. SettingConfigErrors says what an error in the configuration does:
// its line has no result, the default, or it fails, as in LBNL NHC.
const (
	SettingMode         = "MODE"
	SettingConfigErrors = "CONFIG_ERRORS"

	Enforce           = "enforce"
	Observe           = "observe"
	DrainConfigErrors = "drain"
)

// Chosen are the names of these settings.
var Chosen = []string{SettingMode, SettingConfigErrors}

// Choices returns the values of such a setting, the default first; nil for any other setting.
func Choices(name string) []string {
	switch name {
	case SettingMode:
		return []string{Enforce, Observe}
	case SettingConfigErrors:
		return []string{"unknown", DrainConfigErrors}
	}
	return nil
}

// WrongChoice returns an error if such a setting cannot have a value. The empty value is the
// default.
func WrongChoice(name, value string) error {
	if all := Choices(name); all != nil && value != "" && !slices.Contains(all, value) {
		return fmt.Errorf("%s=%s: want %s", name, value, strings.Join(all, " or "))
	}
	return nil
}
