//go:build linux

package main

import (
	"slices"
	"time"
)

// median returns the median of values, or zero if there are none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// ratio returns the median of the ratios of values to base in the same round.
func ratio(values, base []float64) float64 {
	ratios := make([]float64, min(len(values), len(base)))
	for i := range ratios {
		ratios[i] = values[i] / base[i]
	}
	return median(ratios)
}

// of returns one figure of each sample.
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
