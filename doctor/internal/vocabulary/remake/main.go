// The command remake renews table.tsv from the public headers and sources that sources.txt
// names:
//
//	go run ./doctor/internal/vocabulary/remake FOLDER
//
// FOLDER holds each source as a file with the source's id for a name, such as FOLDER/cuda.h;
// a file that is not there leaves its rows alone. For a repository that is fetched,
// "git show HEAD:PATH > FOLDER/ID" makes it. FOLDER/cudart has a line for each number of the
// runtime: the name, a tab, the number, a tab, and what cudaGetErrorString returns for it.
//
// Names, numbers and texts are the sources'; a text stays where they have none. The other
// columns are set by hand and stay as they are. A new row has "?" in them, and the package's
// tests fail until a person has set them.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const folder = "doctor/internal/vocabulary"

// columns of table.tsv.
const (
	colFamily = iota
	colName
	colNumbers
	colTexts
	colResource
	colLayer
	colSticky
	colFatal
	colKind
	colSource
	columns
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./doctor/internal/vocabulary/remake FOLDER")
		os.Exit(2)
	}
	if err := remake(os.Args[1], folder); err != nil {
		fmt.Fprintln(os.Stderr, "remake:", err)
		os.Exit(1)
	}
}

// remake reads the sources in from and rewrites the table in the package's folder.
func remake(from, pkg string) error {
	list, err := os.ReadFile(filepath.Join(pkg, "sources.txt"))
	if err != nil {
		return err
	}
	path := filepath.Join(pkg, "table.tsv")
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rows := split(string(old))
	seen := map[string]bool{} // numbers and texts are the first source's
	for line := range strings.Lines(string(list)) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) != 4 || strings.HasPrefix(line, "#") || f[3] == "-" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(from, f[0]))
		if os.IsNotExist(err) {
			fmt.Fprintf(os.Stderr, "remake: %s: not in %s, rows left alone\n", f[0], from)
			continue
		}
		if err != nil {
			return err
		}
		if err := read(f[0], f[1], f[3], string(text), rows, seen); err != nil {
			return err
		}
	}
	return os.WriteFile(path, write(head, rows), 0o644)
}

// split divides the table into its head and its rows by family and name.
func split(table string) (head string, rows map[string][]string) {
	rows = map[string][]string{}
	for line := range strings.Lines(table) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if strings.HasPrefix(line, "#") {
			head += line
		} else if len(f) == columns {
			rows[f[colFamily]+"\t"+f[colName]] = f
		}
	}
	return head, rows
}

// read adds what one source says to the rows.
func read(id, family, expression, text string, rows map[string][]string, seen map[string]bool) error {
	re, err := regexp.Compile(expression)
	if err != nil {
		return fmt.Errorf("%s: %w", id, err)
	}
	group := func(m []string, name string) string {
		if i := re.SubexpIndex(name); i >= 0 {
			return m[i]
		}
		return ""
	}
	for i, m := range re.FindAllStringSubmatch(text, -1) {
		name, number, words := spelled(family, group(m, "name")), group(m, "number"), strings.TrimSpace(group(m, "text"))
		if re.SubexpIndex("number") < 0 && words == "" {
			number = strconv.Itoa(i) // an enumeration that counts by itself
		}
		if good(name) || strings.HasPrefix(name, "RESERVED") || strings.HasSuffix(name, "_LAST_ERROR") {
			continue
		}
		key := family + "\t" + name
		row := rows[key]
		if row == nil && number == "" {
			continue // a text of a name that the family does not have
		}
		if row == nil {
			row = []string{family, name, "", "", "?", "?", "?", "?", "?", id}
			rows[key] = row
		}
		row[colNumbers] = add(row[colNumbers], number, !seen[key+"\tnumber"])
		row[colTexts] = add(row[colTexts], words, !seen[key+"\ttext"])
		seen[key+"\tnumber"] = seen[key+"\tnumber"] || number != ""
		seen[key+"\ttext"] = seen[key+"\ttext"] || words != ""
	}
	return nil
}

// add adds a value to the list of a column. The first source of a row puts its value in front:
// it is the one of today.
func add(list, value string, first bool) string {
	if n, err := strconv.ParseInt(value, 0, 64); err == nil && !strings.HasPrefix(value, "0x") {
		value = strconv.FormatInt(n, 10)
	}
	had := strings.Split(list, "|")
	switch {
	case value == "" || had[0] == value:
		return list
	case list == "":
		return value
	case first:
		had = slices.DeleteFunc(had, func(s string) bool { return s == value })
		return strings.Join(append([]string{value}, had...), "|")
	case slices.Contains(had, value):
		return list
	}
	return list + "|" + value
}

// good reports whether the name is that of success.
func good(name string) bool {
	low := strings.ToLower(name)
	return strings.HasSuffix(low, "success") || name == "OK" || name == "UR_RESULT_FORCE_UINT32"
}

// spelled is a name as programs print it: absl's kResourceExhausted is RESOURCE_EXHAUSTED.
func spelled(family, name string) string {
	if family != "absl" {
		return name
	}
	return strings.ToUpper(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(name[1:], "${1}_$2"))
}

// write prints the table: families in order, then names.
func write(head string, rows map[string][]string) []byte {
	var lines []string
	for _, r := range rows {
		lines = append(lines, strings.Join(r, "\t"))
	}
	slices.Sort(lines)
	var b bytes.Buffer
	b.WriteString(head)
	for _, l := range lines {
		b.WriteString(l + "\n")
	}
	return b.Bytes()
}
