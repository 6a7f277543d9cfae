package checks

import "math/big"

// UnparseSize formats kB as LBNL NHC does in its messages: in the largest unit with an error of
// at most a tenth, rounded: 5121 is "5MB", 5632 is "5632kB". It drops fractions of a kB.
func UnparseSize(kB *big.Rat) string {
	number, power := unparse(kB, 1024, len(sizeUnits)-1)
	return number + sizeSuffixes[power] + "B"
}

// unparseCount does the same for a count, in powers of 1000: 1048576 is "1M", 1500000 is
// "1500k".
func unparseCount(n *big.Rat) string {
	number, power := unparse(n, 1000, len(sizeUnits))
	return number + append([]string{""}, sizeSuffixes[:]...)[power]
}

// LimitText formats a limit as UnparseSize does, but a whole number that
// is not divided stays as written: "0x10kB".
func (s SizeKB) LimitText() string {
	number, power := unparse(s.KB, 1024, len(sizeUnits)-1)
	if power == 0 && integerForm().MatchString(s.Text) {
		number = s.Text
	}
	return number + sizeSuffixes[power] + "B"
}

// LimitText formats a limit of a count.
func (c Count) LimitText() string {
	if _, power := unparse(c.N, 1000, len(sizeUnits)); power == 0 && integerForm().MatchString(c.text) {
		return c.text
	}
	return unparseCount(c.N)
}

var sizeSuffixes = [len(sizeUnits)]string{"k", "M", "G", "T", "P", "E"}

// unparse divides r by base at most most times. power is the number of divisions.
func unparse(r *big.Rat, base int64, most int) (number string, power int) {
	n := new(big.Int).Quo(r.Num(), r.Denom())
	unit, rest := big.NewInt(base), new(big.Int)
	for ; n.Cmp(unit) >= 0 && power < most; power++ {
		q, m := new(big.Int).QuoRem(n, unit, new(big.Int))
		if share := m.Int64() * 100 / base; min(share, 100-share) > 10 {
			break
		}
		n, rest = q, m
	}
	if rest.Int64() >= base/2 {
		n.Add(n, big.NewInt(1))
	}
	return n.String(), power
}

// Kilobytes formats a number of kB in the largest unit that divides it.
func Kilobytes(n uint64) string { return UnparseSize(new(big.Rat).SetInt(new(big.Int).SetUint64(n))) }
