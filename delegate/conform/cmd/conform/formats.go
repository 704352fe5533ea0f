package main

import (
	"encoding/xml"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"
)

type junitSuites struct {
	XMLName xml.Name `xml:"testsuites"`
	Suite   junitSuite
}

type junitSuite struct {
	XMLName    xml.Name        `xml:"testsuite"`
	Name       string          `xml:"name,attr"`
	Tests      int             `xml:"tests,attr"`
	Failures   int             `xml:"failures,attr"`
	Errors     int             `xml:"errors,attr"`
	Skipped    int             `xml:"skipped,attr"`
	Time       string          `xml:"time,attr"`
	Properties []junitProperty `xml:"properties>property"`
	Cases      []junitCase
}

type junitProperty struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

type junitCase struct {
	XMLName xml.Name      `xml:"testcase"`
	Name    string        `xml:"name,attr"`
	Class   string        `xml:"classname,attr"`
	Time    string        `xml:"time,attr"`
	Failure *junitMessage `xml:"failure"`
	Skipped *junitMessage `xml:"skipped"`
}

type junitMessage struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// junit writes the report as JUnit XML. A finding of the baseline is a skipped test.
func (r *report) junit(w io.Writer) error {
	name := "conform." + filepath.Base(r.Plugin)
	suite := junitSuite{
		Name: name, Tests: len(r.Checks), Failures: r.Failed, Skipped: r.NotRun + r.Accepted,
		Properties: []junitProperty{{"plugin", r.Plugin}, {"kind", r.Kind.Name}, {"why", r.Kind.Why}},
	}
	seconds := func(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }
	var total time.Duration
	for _, c := range r.Checks {
		total += c.took
		test := junitCase{Name: c.Name, Class: name, Time: seconds(c.took)}
		switch c.Result {
		case isFailed:
			test.Failure = &junitMessage{c.Detail, c.Duty + "\n" + indent("why: ", c.Why) + "\n" + indent("see: ", c.Where)}
		case isKnown:
			test.Skipped = &junitMessage{Message: "known: " + c.Detail}
		case isNotRun:
			test.Skipped = &junitMessage{Message: c.Detail}
		}
		suite.Cases = append(suite.Cases, test)
	}
	suite.Time = seconds(total)
	text, err := xml.MarshalIndent(junitSuites{Suite: suite}, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, text)
	return err
}

// markdown writes the report for a pull request.
func (r *report) markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "### conform %s: %s\n\n%s\n", markup(filepath.Base(r.Plugin)), r.counts(), markup("It is "+r.taken()))
	if findings := r.with(isFailed); len(findings) > 0 {
		b.WriteString("\n| check | what the plugin does | why it matters | where it is written |\n|---|---|---|---|\n")
		for _, c := range findings {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c.Name, markup(c.Detail), markup(c.Why), markup(c.Where))
		}
	}
	for _, name := range r.Gone {
		fmt.Fprintf(&b, "\n%s.\n", markup(r.gone(name)))
	}
	if others := r.with(isPassed, isKnown, isNotRun); len(others) > 0 {
		fmt.Fprintf(&b, "\n<details><summary>The other %d checks</summary>\n\n| check | result | |\n|---|---|---|\n", len(others))
		for _, c := range others {
			text := c.Duty
			if c.Detail != "" {
				text = c.Detail
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", c.Name, c.Result, markup(text))
		}
		b.WriteString("\n</details>\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// markup escapes what means something in the cell of a Markdown table.
func markup(text string) string {
	return strings.NewReplacer(
		"\\", "\\\\", "`", "\\`", "|", "\\|", "*", "\\*", "_", "\\_", "[", "\\[", "]", "\\]", "~", "\\~", "#", "\\#",
		"&", "&amp;", "<", "&lt;", "@", "@<!-- -->", "\n", "<br>",
	).Replace(text)
}
