/* A line chart as SVG; both axes go from 0 to 100 %. */
#include "cli.h"

enum { WIDTH = 760, HEIGHT = 460, LEFT = 70, RIGHT = 740, TOP = 50, BOTTOM = 400 };
enum { LEGEND_X = 600, LEGEND_Y = 270, STEPS = 5 };

/* Distinct in print and for colour-blind readers, together with the shape of the marks. */
static const char *const colors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};
enum { COLORS = sizeof colors / sizeof *colors };

static double x_of(double share)
{
    return LEFT + share * (RIGHT - LEFT);
}

static double y_of(double share)
{
    return BOTTOM - share * (BOTTOM - TOP);
}

static void print_escaped(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '<') fputs("&lt;", out);
        else if (*text == '&') fputs("&amp;", out);
        else fputc(*text, out);
    }
}

/* The i-th kind of mark around a point. */
static void print_mark(FILE *out, size_t i, double x, double y)
{
    const char *color = colors[i % COLORS];
    if (i % 3 == 0) fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", x, y, color);
    else if (i % 3 == 1)
        fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"7\" height=\"7\" fill=\"%s\"/>\n", x - 3.5, y - 3.5, color);
    else
        fprintf(out, "<path d=\"M%.1f %.1f l4.5 8 h-9 z\" fill=\"%s\"/>\n", x, y - 5, color);
}

static void print_axes(FILE *out, const cli_chart *chart)
{
    for (int i = 0; i <= STEPS; i++) {
        double share = (double)i / STEPS, x = x_of(share), y = y_of(share);
        fprintf(out, "<path d=\"M%.1f %d V%d M%d %.1f H%d\" stroke=\"#ddd\"/>\n", x, TOP, BOTTOM, LEFT, y, RIGHT);
        fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f %%</text>\n", x, BOTTOM + 20,
                share * 100.0);
        fprintf(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.0f %%</text>\n", LEFT - 8, y + 5, share * 100.0);
    }
    fprintf(out, "<path d=\"M%d %d V%d H%d\" fill=\"none\" stroke=\"#333\"/>\n", LEFT, TOP, BOTTOM, RIGHT);
    fprintf(out, "<text x=\"%d\" y=\"%d\" font-size=\"16\">", LEFT, TOP - 20);
    print_escaped(out, chart->title);
    fprintf(out, "</text>\n<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">", (LEFT + RIGHT) / 2, BOTTOM + 45);
    print_escaped(out, chart->x_label);
    fprintf(out, "</text>\n<text transform=\"translate(18 %d) rotate(-90)\" text-anchor=\"middle\">",
            (TOP + BOTTOM) / 2);
    print_escaped(out, chart->y_label);
    fputs("</text>\n", out);
}

static void print_line(FILE *out, const cli_chart *chart, size_t line)
{
    const char *dashes = chart->lines[line].dashed ? " stroke-dasharray=\"6 4\"" : "";
    bool begun = false;
    fputs("<path d=\"", out);
    for (size_t i = 0; i < chart->point_count; i++) {
        if (chart->points[i].line != line) continue;
        fprintf(out, "%c%.1f %.1f", begun ? 'L' : 'M', x_of(chart->points[i].x), y_of(chart->points[i].y));
        begun = true;
    }
    fprintf(out, "\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s/>\n", colors[line % COLORS], dashes);
    for (size_t i = 0; i < chart->point_count; i++)
        if (chart->points[i].line == line) print_mark(out, line, x_of(chart->points[i].x), y_of(chart->points[i].y));
    double y = LEGEND_Y + 20.0 * (double)line;
    fprintf(out, "<path d=\"M%d %.1f h30\" stroke=\"%s\" stroke-width=\"2\"%s/>\n", LEGEND_X, y,
            colors[line % COLORS], dashes);
    print_mark(out, line, LEGEND_X + 15, y);
    fprintf(out, "<text x=\"%d\" y=\"%.1f\">", LEGEND_X + 38, y + 5);
    print_escaped(out, chart->lines[line].name);
    fputs("</text>\n", out);
}

void cli_chart_print(const cli_chart *chart, FILE *out)
{
    fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
                 "font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n", WIDTH, HEIGHT, WIDTH, HEIGHT);
    fprintf(out, "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", WIDTH, HEIGHT);
    print_axes(out, chart);
    for (size_t i = 0; i < chart->line_count; i++) print_line(out, chart, i);
    fputs("</svg>\n", out);
}
