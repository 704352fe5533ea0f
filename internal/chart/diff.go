package main

import "slices"

// diff returns how to make b of a, with as many lines of a as possible: the text to insert before
// each line, and which lines to remove. Both end with the same line.
func diff(a, b []string) (inserts []string, removes []bool) {
	common := make([][]int, len(a)+1) // common[i][j] is the number of common lines of a[i:] and b[j:]
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := range slices.Backward(a) {
		for j := range slices.Backward(b) {
			common[i][j] = max(common[i+1][j], common[i][j+1])
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	inserts, removes = make([]string, len(a)), make([]bool, len(a))
	for i, j := 0, 0; i < len(a); {
		switch {
		case a[i] == b[j]:
			i, j = i+1, j+1
		case common[i+1][j] >= common[i][j+1]:
			removes[i] = true
			i++
		default:
			inserts[i] += b[j]
			j++
		}
	}
	return inserts, removes
}
