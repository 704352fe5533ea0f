//go:build linux

package main

import (
	"slices"
	"time"
)

// median is the middle of values, or what is between the two in the middle.
// Without values it is zero.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// ratio is the median of what is to base in the same round.
func ratio(values, base []float64) float64 {
	ratios := make([]float64, min(len(values), len(base)))
	for i := range ratios {
		ratios[i] = values[i] / base[i]
	}
	return median(ratios)
}

// of takes one figure of each sample.
func of(samples []sample, figure func(sample) float64) []float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = figure(s)
	}
	return values
}

func wall(s sample) float64   { return ms(s.wall) }
func cpu(s sample) float64    { return ms(s.cpu) }
func faults(s sample) float64 { return float64(s.faults) }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
