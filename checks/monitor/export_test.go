package monitor

// Rows and KindRow are for tests of this package from outside, which need all checks.
var Rows = rows

// KindRow is a row of the table of kinds.
type KindRow = kindRow
