//go:build linux

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
)

// metrics are the figures that the API server publishes of itself, by name and labels.
type metrics map[string]float64

func parseMetrics(text []byte) metrics {
	m := metrics{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || line[0] == '#' {
			continue
		}
		if value, err := strconv.ParseFloat(line[at+1:], 64); err == nil {
			m[line[:at]] = value
		}
	}
	return m
}

// minus returns what has been added to m since before.
func (m metrics) minus(before metrics) metrics {
	d := make(metrics, len(m))
	for key, value := range m {
		d[key] = value - before[key]
	}
	return d
}

// each calls do with each series of that name that has all these labels, given as
// label="value".
func (m metrics) each(do func(key string, value float64), name string, labels ...string) {
	for key, value := range m {
		rest, found := strings.CutPrefix(key, name)
		if !found || rest != "" && rest[0] != '{' {
			continue
		}
		if !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(rest, l) }) {
			do(key, value)
		}
	}
}

func (m metrics) sum(name string, labels ...string) (sum float64) {
	m.each(func(_ string, value float64) { sum += value }, name, labels...)
	return sum
}

// A spread is the number, the mean and the 99th percentile of what a histogram has. The
// latter is the upper bound of a bucket.
type spread struct{ n, mean, p99 float64 }

func (m metrics) spread(name string, labels ...string) spread {
	s := spread{n: m.sum(name+"_count", labels...)}
	if s.n == 0 {
		return s
	}
	s.mean = m.sum(name+"_sum", labels...) / s.n
	buckets := map[float64]float64{}
	m.each(func(key string, value float64) {
		_, bound, _ := strings.Cut(key, `le="`)
		bound, _, _ = strings.Cut(bound, `"`)
		le, err := strconv.ParseFloat(bound, 64)
		if err != nil {
			le = math.Inf(1)
		}
		buckets[le] += value
	}, name+"_bucket", labels...)
	type bucket struct{ le, n float64 }
	var sorted []bucket
	for le, n := range buckets {
		sorted = append(sorted, bucket{le, n})
	}
	slices.SortFunc(sorted, func(a, b bucket) int { return cmp.Compare(a.le, b.le) })
	for _, b := range sorted {
		if s.p99 = b.le; b.n >= 0.99*s.n {
			break
		}
	}
	return s
}
